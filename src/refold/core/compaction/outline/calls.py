"""Calls: what a tool call asked for and how it ended, read from the items of every generation of rollouts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from refold.core.compaction.outline.writes import Write, patched, written
from refold.core.items import Item, content_parts
from refold.core.jsonio import dump, is_list, is_object, load
from refold.errors import UnusableItem

SHELL_TOOLS = frozenset(
    {"exec_command", "shell_command", "shell", "local_shell", "container.exec", "bash", "run_command"}
)
READ = 4_000  # characters at each end of an output that are looked at; its facts stand there
SCRIPT = 100_000  # characters of a script in which calls are looked for
SAID = 2_000  # characters of a call's text that are kept to show it and to know it again

_CODE = re.compile(r"^(?:Process exited with code|Exit code:) (-?\d{1,10})\s*$", re.MULTILINE)
_RUNNING = re.compile(r"^Process running with session ID (\d{1,18})\s*$", re.MULTILINE)
_BODY = re.compile(r"^Output:\n", re.MULTILINE)
_FAILURE = re.compile(
    r"(?:error|failed|failure|traceback|exception|exec command rejected|rejected|aborted|unsupported call"
    r"|script failed|\w+ verification failed|patch rejected|unable to|cannot)\b",
    re.IGNORECASE,
)
_REJECTED = "\nrejected by user"
_NESTED = re.compile(r"\btools\.([A-Za-z_]\w*)\(\s*")
_from_json = json.JSONDecoder().raw_decode


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What one call asked for: a shell text, if it was one, and the words that show it."""

    name: str
    text: str  # the command, or the tool and its arguments
    is_command: bool = False
    where: str = ""  # the folder that the call named
    session: str = ""  # the running process that the call writes to or waits for
    arguments: Any = None
    patch: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """What makes another call the same one: the command and its folder, or the files of a patch."""
        if self.patch:
            return ("patch", *(path for path, _ in patched(self.patch)))
        return (self.where, self.text)

    def writes(self) -> list[Write]:
        if self.patch:
            return patched(self.patch)
        return written(self.text) if self.is_command else []


class Ended(msgspec.Struct, frozen=True, gc=False):
    """How one call ended: its exit code, the process that goes on, the end of its output, whether it failed."""

    code: int | None = None
    session: str = ""
    body: str = ""
    failed: bool = False

    @property
    def state(self) -> str:
        if self.code is not None:
            return f"exit {self.code}"
        if self.session:
            return "running"
        return "failed" if self.failed else "answered"

    def last_lines(self, count: int) -> list[str]:
        lines = [line for line in self.body.splitlines() if line.strip()]
        return lines[-count:]


# --- asked ---------------------------------------------------------------------------------------------------


def asked(call: Item) -> list[Asked]:
    """What a call item asks for; a script may ask for several things. Empty for what is no call."""
    match call:
        case {"type": "local_shell_call", "action": {"command": command, **rest}}:
            return [_shell("local_shell", command, rest.get("working_directory"))]
        case {"type": "custom_tool_call", "input": str(text), "name": name}:
            if name == "exec" and "tools." in text:
                return list(_nested(text[:SCRIPT])) or [Asked("exec", text[:SAID])]
            return [_one(str(name), text)]
        case {"type": "function_call" | "custom_tool_call" | "tool_search_call"}:
            return [_one(str(call.get("name") or call["type"]), call.get("arguments", call.get("input")))]
        case _:
            return []


def _nested(script: str) -> Iterator[Asked]:
    """The calls that a script makes with arguments written out."""
    for found in _NESTED.finditer(script):
        try:
            value, _ = _from_json(script, found.end())
        except (ValueError, RecursionError):
            continue
        yield _one(found[1], value)


def _one(name: str, given: Any) -> Asked:
    arguments = _read(given)
    if not is_object(arguments):
        text = given if isinstance(given, str) else ""
        patch = text if "*** Begin Patch" in text[:READ] else ""
        return Asked(name, f"{name} {text[:SAID]}" if text else name, patch=patch)
    if name in SHELL_TOOLS:
        command = arguments.get("cmd", arguments.get("command"))
        return _shell(name, command, arguments.get("workdir"))
    session = str(arguments.get("session_id", "")) if name == "write_stdin" else ""
    patch = arguments.get("input", arguments.get("patch"))
    patch = patch if isinstance(patch, str) and "*** Begin Patch" in patch[:READ] else ""
    return Asked(name, f"{name} {_words(given)[:SAID]}", session=session, arguments=arguments, patch=patch)


def _shell(name: str, command: Any, where: Any) -> Asked:
    if is_list(command):
        words = [word for word in command if isinstance(word, str)]
        is_script = len(words) > 2 and words[-2] in ("-c", "-lc", "-ic", "-Command")
        command = words[-1] if is_script else " ".join(words)
    text = command if isinstance(command, str) else ""
    if not text.strip():
        return Asked(name, name)
    return Asked(name, text, True, where if isinstance(where, str) else "")


def _read(given: Any) -> Any:
    if not isinstance(given, str) or given.lstrip()[:1] != "{":
        return given
    try:
        return load(given.encode("utf-8", "replace"))[0]
    except ValueError:
        return given


def _words(given: Any) -> str:
    if isinstance(given, str):
        return given
    try:
        return dump(given).decode()
    except UnusableItem:
        return ""


# --- ended ---------------------------------------------------------------------------------------------------


def ended(output: Item) -> Ended:
    """How the call ended that this item answers."""
    text = _text(output)
    if text[:1] == "{" and '"metadata"' in text[-400:]:
        try:
            match load(text.encode("utf-8", "replace"))[0]:
                case {"output": str(body), "metadata": {"exit_code": int(code)}}:
                    return Ended(code, "", body[-READ:], code != 0)
                case _:
                    pass
        except ValueError:
            pass
    start = text[:READ]
    mark = _BODY.search(start)
    head = start[: mark.start()] if mark else start[:300]
    codes = _CODE.findall(head) or ([] if mark else _CODE.findall(text[-200:]))
    body = text[max(mark.end() if mark else 0, len(text) - READ) :]
    if codes:
        code = int(codes[-1])
        return Ended(code, "", body, code != 0)
    if going_on := _RUNNING.findall(head):
        return Ended(None, going_on[-1], body)
    return Ended(None, "", body, _FAILURE.match(start.lstrip()) is not None or _REJECTED in start[:300])


def _text(output: Item) -> str:
    body = output.get("output")
    if isinstance(body, str):
        return body
    texts = (part.get("text") for part in content_parts({"output": body}))
    return "\n".join(text for text in texts if isinstance(text, str))
