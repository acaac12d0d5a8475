"""Hook settings: the commands that a person wants run around turns and calls, from `[hooks]` (docs/hooks.md)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Annotated, Any

import msgspec

from refold.core.jsonio import JSON, is_list, is_object
from refold.errors import ConfigError

DEFAULT_SECONDS = 60.0  # a check takes a second; a test suite that is run as a check, a minute
EVERY_TOOL = (None, "", "*")  # how a matcher of every tool may be written
ALIKE = 0.7  # how near a misspelt name is, by difflib, whatever its case

# What files of other programs have beside our events and keys; left out, nothing else is run than what they say.
FOREIGN_EVENTS = frozenset(
    "Notification PermissionRequest SessionEnd SessionStart SubagentStart SubagentStop".split()  # noqa: SIM905
) | {"state"}
FOREIGN_KEYS = frozenset({"async", "description", "statusMessage", "visibilityHint"})


class HookCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One command: shell text; `timeout` in seconds; `matcher` a regular expression for a tool's whole name, or for
    `manual` or `auto` around a compaction."""

    command: str
    matcher: str | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] = DEFAULT_SECONDS

    def concerns(self, what: str) -> bool:
        """Whether it is run for calls of this tool, or for what set off a compaction."""
        return self.matcher in EVERY_TOOL or re.fullmatch(self.matcher or "", what) is not None


class HookSettings(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The commands of each event, in the order in which they are run."""

    pre_tool_use: tuple[HookCommand, ...] = ()
    post_tool_use: tuple[HookCommand, ...] = ()
    user_prompt_submit: tuple[HookCommand, ...] = ()
    stop: tuple[HookCommand, ...] = ()
    pre_compact: tuple[HookCommand, ...] = ()
    post_compact: tuple[HookCommand, ...] = ()

    def __bool__(self) -> bool:
        return self != HookSettings()


EVENTS = HookSettings.__struct_encode_fields__
ENTRY_KEYS = ("matcher", "command", "timeout", "type", "hooks")
INNER_KEYS = ("command", "timeout", "type")


def parse_hooks(value: Any, where: str) -> HookSettings:
    """The table `[hooks]`. Raises ConfigError that names the key and says what to do; `where` is its file or option."""
    if not is_object(value):
        raise ConfigError("hooks", f"must be tables like [[hooks.PreToolUse]] ({where})")
    _check_names("hooks", value, EVENTS, FOREIGN_EVENTS, where)
    names = zip(HookSettings.__struct_fields__, EVENTS, strict=True)
    found = {name: tuple(_commands(f"hooks.{event}", value.get(event, []), where)) for name, event in names}
    return HookSettings(**found)


def _commands(key: str, entries: Any, where: str) -> Iterator[HookCommand]:
    for entry in _tables(key, entries, where):
        _check_names(key, entry, ENTRY_KEYS, FOREIGN_KEYS, where)
        if "hooks" not in entry:
            yield _command(key, entry, where)
            continue
        if "command" in entry:
            raise ConfigError(f"{key}.command", f"stands beside `hooks`; write one of them ({where})")
        for inner in _tables(f"{key}.hooks", entry["hooks"], where):
            _check_names(f"{key}.hooks", inner, INNER_KEYS, FOREIGN_KEYS, where)
            matcher = {"matcher": entry["matcher"]} if "matcher" in entry else {}
            yield _command(f"{key}.hooks", {**inner, **matcher}, where)


def _command(key: str, table: JSON, where: str) -> HookCommand:
    kind, command, matcher = table.get("type", "command"), table.get("command"), table.get("matcher")
    if kind != "command":
        raise ConfigError(f"{key}.type", f'must be "command", the only kind that is run, not {kind!r} ({where})')
    if not isinstance(command, str) or not command.strip():
        raise ConfigError(f"{key}.command", f"must be the shell text to run ({where})")
    if matcher is not None and not isinstance(matcher, str):
        raise ConfigError(f"{key}.matcher", f"must be a regular expression in quotes ({where})")
    seconds = table.get("timeout", DEFAULT_SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ConfigError(f"{key}.timeout", f"must be seconds above 0, not {seconds!r} ({where})")
    found = HookCommand(command=command, matcher=matcher, timeout=float(seconds))
    try:
        found.concerns("")
    except re.error as error:
        raise ConfigError(f"{key}.matcher", f"is no regular expression: {error} ({where})") from None
    return found


def _tables(key: str, value: Any, where: str) -> list[JSON]:
    if not is_list(value) or not all(is_object(entry) for entry in value):
        raise ConfigError(key, f"must be a list of tables: [[{key}]] ({where})")
    return value


def _check_names(key: str, table: JSON, names: Collection[str], foreign: Collection[str], where: str) -> None:
    """What is neither ours nor known from elsewhere is refused: a guard that is not run looks like one that permits."""
    for given in table:
        if given not in names and given not in foreign:
            near = _nearest(given, names)
            said = f"did you mean {near}?" if near else f"known: {', '.join(names)}"
            raise ConfigError(f"{key}.{given}", f"is not a setting; {said} ({where})")


def _nearest(given: str, names: Collection[str]) -> str | None:
    """The name that a misspelt one most likely means: `pre_tool_use` is `PreToolUse`."""
    import difflib  # only a wrong name needs it

    plain = {name.lower(): name for name in names}
    near = difflib.get_close_matches(given.lower().replace("_", ""), plain, n=1, cutoff=ALIKE)
    return plain[near[0]] if near else None
