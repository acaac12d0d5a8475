"""Redaction: texts of a record replaced before it is kept, wherever they stand in it (docs/redaction.md).

Rule 1: only texts change. Keys, ids, types, folders, encrypted content and `data:` URLs stay as they are.
Rule 2: a text that was redacted stays as it is when it is redacted again.
Rule 3: JSON in a text is JSON afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import msgspec

from refold.core.items import PASSTHROUGH, Item
from refold.core.jsonio import TOO_DEEP, dump, is_list, is_object, load
from refold.core.records import Record, RequestSent, RolledBack, TurnEnded, TurnStarted, UsageCounted
from refold.core.redaction_settings import NAME, Pattern, RedactionSettings
from refold.core.world import World
from refold.errors import UnusableItem

PIECE = 1 << 20  # characters that one search reads at once: Python's `re` knows no time limit
OVERLAP = 1 << 16  # characters beyond it, for what lies across the end of a piece
SHORTEST_VALUE = 8  # characters of an environment variable's: shorter ones stand in ordinary words
CUT_WORD = 256  # characters on either side of a cut that may be half of something

# Words in the name of a variable that say that it holds a secret; and last words that say that it does not.
SECRET_WORDS = frozenset(
    {
        *("key", "keys", "apikey", "token", "tokens", "secret", "secrets", "password", "passwords", "passwd", "pass"),
        *("passphrase", "pwd", "pw", "credential", "credentials", "auth", "dsn", "cookie"),
    }
)
HARMLESS_ENDS = frozenset({"path", "file", "dir", "sock", "socket", "url", "type", "user", "name", "lifetime"})
HARMLESS = frozenset({"PWD", "OLDPWD"})

_KEY_NAME = r"(?:[A-Z0-9]{1,16} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
_IS = r"[\\\"']{0,4}\s{0,8}[:=]\s{0,8}[\\\"']{0,4}"  # between a header's name and its value
_TOKEN = r"[A-Za-z0-9._~+/=-]"
_SOON = "{0,128}+"  # how far a digit is looked for: further than any key goes without one, and soon given up
_SCHEME = r"(?P<scheme>(?i:bearer|basic|token|digest|apikey|negotiate)\s{1,8})?"
_HEADERS = ("uthorization", "UTHORIZATION", "-api-key", "-Api-Key", "-API-KEY", "-auth-token", "-Auth-Token")


class _Rule(msgspec.Struct, frozen=True):
    """One thing that is looked for, only in a text that holds `sign`."""

    find: re.Pattern[str]
    mark: str
    sign: str = ""
    group: int = 0  # what of it is replaced


class _Shape(msgspec.Struct, frozen=True):
    """How one kind of secret looks: it begins with one of `starts`, and `rest` fits behind that.

    A start is a plain text, because Python finds those a hundred times faster. `is_word`: not in the middle of one.
    `rest` reads no further than a bound before it fits or fails: a hostile text may be nothing but starts.
    """

    starts: tuple[str, ...]
    rest: str
    is_word: bool = True

    def rules(self, mark: str) -> Iterator[_Rule]:
        for start in self.starts:
            begun = re.escape(start)
            begin = rf"(?:(?<![A-Za-z0-9]{begun})|(?<=\\[nrt]{begun}))"  # also behind an escape in JSON
            find = re.compile(begun + (begin if self.is_word else "") + self.rest)
            yield _Rule(find, mark, start, find.groupindex.get("secret", 0))


SHAPES: dict[str, tuple[_Shape, ...]] = {
    "api-keys": (
        _Shape(("sk-",), rf"(?=[A-Za-z_-]{_SOON}\d)[A-Za-z0-9_-]{{20,}}"),
        _Shape(("ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat_"), r"[A-Za-z0-9_]{22,}"),
        _Shape(("glpat-", "npm_", "pypi-", "hf_"), r"[A-Za-z0-9_-]{20,}"),
        _Shape(("AKIA", "ASIA"), r"[0-9A-Z]{16}(?![0-9A-Za-z])"),
        _Shape(("xox",), r"[a-z]-[A-Za-z0-9-]{10,}"),
        _Shape(("xapp-",), r"[A-Za-z0-9-]{10,}"),
        _Shape(("AIza",), r"[0-9A-Za-z_-]{35}"),
        _Shape(("sk_live_", "sk_test_", "rk_live_"), r"[A-Za-z0-9]{16,}"),
    ),
    "private-keys": (
        _Shape(
            ("-----BEGIN ",),
            rf"{_KEY_NAME}(?:(?:[^-]|-(?!----)){{0,32768}}+-----END {_KEY_NAME}"
            r"|(?:(?:\s|\\[nr])+[A-Za-z0-9+/=]{16,}){0,2000})",
            is_word=False,
        ),
    ),
    "json-web-tokens": (_Shape(("eyJ",), r"[A-Za-z0-9_-]{8,2048}+\.eyJ[A-Za-z0-9_-]{8,32768}+\.[A-Za-z0-9_-]{8,}"),),
    "url-passwords": (
        _Shape(("://",), r"[^\s:/@\"'<>\\]{0,256}:(?P<secret>(?![$*{<])[^\s/@\"'<>\\]{1,256})@", is_word=False),
    ),
    "authorization": (
        _Shape(
            _HEADERS,
            rf"{_IS}{_SCHEME}(?P<secret>(?(scheme){_TOKEN}{{4,}}|(?=[A-Za-z._~+/=-]{_SOON}\d){_TOKEN}{{16,}}))",
            is_word=False,
        ),
    ),
    "email": (),  # it begins with anything: see below
}
_EMAIL = r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}"
MARKS: dict[str, str] = {
    "api-keys": "api-key",
    "private-keys": "private-key",
    "json-web-tokens": "json-web-token",
    "url-passwords": "password",
    "authorization": "authorization",
    "email": "email",
}

# What no rule looks into: a mark, and a `data:` URL.
_KEPT = re.compile(rf"(\[redacted:{NAME}\]|data:[\w.+-]+/[\w.+-]+(?:;[\w=.-]+)*;base64,[A-Za-z0-9+/=_-]+)")
_CUT = re.compile(r"…\d+ (?:tokens|chars) truncated…")
_CUT_SIGN = "truncated…"
_WORD_BEFORE = re.compile(r"[A-Za-z0-9_+/=.~-]{8,}\Z")
_WORD_BEHIND = re.compile(r"[A-Za-z0-9_+/=.~-]{8,}")

# Keys whose values say what and whose something is, and are no words of anybody.
_IDS = frozenset({"id", "call_id", "turn_id", "type", "role", "encrypted_content", "encrypted_function_args"})
_OF_ITEM = _IDS | {"name", "namespace", "status", "phase", "execution", PASSTHROUGH}
_OF_PART = _IDS | {"detail"}
_OF_RECORD = _IDS | {
    *("cwd", "workspace_roots", "model", "thread", "thread_id", "window_id", "forked_from", "history_mode", "item_id"),
    *("address", "addresses", "goal_ids", "known", "hash", "kind", "method", "provider", "timestamp", "response_id"),
    PASSTHROUGH,
}
_WITHOUT_TEXT = (RequestSent, RolledBack, TurnStarted, UsageCounted)
_NONE: frozenset[str] = frozenset()

_R = TypeVar("_R", bound=Record)


class Redaction:
    """What is looked for in the texts of a session. Nothing in it changes after it is made.

    `environ`: the variables of which those that look secret are looked for, where the settings say so.
    """

    def __init__(self, settings: RedactionSettings, environ: Mapping[str, str]) -> None:
        self._rules = [*map(_rule, settings.rules), *_detectors(settings)]
        self._literals = _literals(environ) if settings.environment else []

    # --- texts -------------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """The text with what is looked for replaced."""
        if text.startswith("data:") and _KEPT.fullmatch(text):
            return text
        for value, mark in self._literals:
            if value in text:
                text = _outside(text, lambda piece, value=value, mark=mark: piece.replace(value, mark))
        for rule in self._rules:
            if rule.sign in text:
                text = _outside(text, lambda piece, rule=rule: _replaced(rule, piece))
        return _without_halves(text) if _CUT_SIGN in text else text

    def _inside_json(self, text: str) -> str:
        """The same for a text that is JSON: its values are looked at as they are, without their escapes."""
        try:
            value, _ = load(text.encode())
        except (ValueError, UnicodeEncodeError):
            return self.text(text)
        new = self._value(value, _NONE)
        if new is value:
            if self.text(text) == text:
                return text
            new = self._value(value, _NONE, numbers=True)  # or it stands in a key that was given twice
        return dump(new).decode()

    def _output(self, text: str) -> str:
        """The same for a text that may be JSON: what is replaced may hold a quote."""
        new = self.text(text)
        return new if new is text or new == text or not _is_json(text) or _is_json(new) else self._inside_json(text)

    # --- values ------------------------------------------------------------------------------------------------

    def _value(self, value: Any, kept: frozenset[str], *, numbers: bool = False) -> Any:
        """A JSON value with its texts redacted, but those under the `kept` keys; the value itself where none is."""
        if isinstance(value, str):
            return self.text(value)
        if is_object(value):
            changed: dict[str, Any] = {}
            for key, part in value.items():
                if key not in kept or (is_object(part) and key != PASSTHROUGH):
                    new = self._value(part, kept, numbers=numbers)
                    if new is not part and new != part:
                        changed[key] = new
            return {**value, **changed} if changed else value
        if is_list(value):
            parts: list[Any] = []
            for part in value:
                parts.append(self._value(part, kept, numbers=numbers))
            return value if all(new is old or new == old for new, old in zip(parts, value, strict=True)) else parts
        if numbers and isinstance(value, int | float) and not isinstance(value, bool):
            written = str(value)
            return value if (new := self.text(written)) == written else new
        return value

    def item(self, item: Item) -> Item:
        """An item with its texts redacted: what was said, called with, given out, thought."""
        changed: Item = {}
        for key, part in item.items():
            if key in _OF_ITEM:
                continue
            if isinstance(part, str) and key in ("arguments", "output"):
                new = self._inside_json(part) if key == "arguments" else self._output(part)
            else:
                new = self._value(part, _OF_PART)
            if new is not part and new != part:
                changed[key] = new
        return {**item, **changed} if changed else item

    def record(self, record: _R) -> _R:
        """A record as it is to be kept; the record itself where nothing in it is looked for. Raises UnusableItem."""
        if isinstance(record, _WITHOUT_TEXT):
            return record
        changed: dict[str, Any] = {}
        try:
            for name in record.__struct_fields__:
                value = getattr(record, name)
                if name not in _OF_RECORD and (new := self._field(record, name, value)) is not value:
                    changed[name] = new
        except RecursionError:
            raise UnusableItem(TOO_DEEP) from None
        return cast("_R", msgspec.structs.replace(record, **changed)) if changed else record

    def _field(self, record: Record, name: str, value: Any) -> Any:
        """A field of a record with its texts redacted; the value itself where there is none."""
        if name == "item":
            return self.item(value)
        if name == "outcome" and isinstance(record, TurnEnded):
            return value
        if name == "steers" and is_object(value):  # its keys are ids, its values words
            return self._value(value, _NONE)
        if not isinstance(value, tuple):  # a text, or JSON
            return self._value(value, _OF_RECORD)
        parts = cast("tuple[Any, ...]", value)
        of_items = name == "history"
        new = tuple(self.item(part) if of_items else self._value(part, _OF_RECORD) for part in parts)
        return parts if all(one is old for one, old in zip(new, parts, strict=True)) else new

    def world(self, world: World) -> World:
        """What is in force, as it can be told and kept: else it would be another one than what was told, each turn."""
        state, texts = self._value(world.state, _OF_RECORD), self._value(world.texts, _NONE)
        return world if state is world.state and texts is world.texts else World(state, texts)


# --- rules ---------------------------------------------------------------------------------------------------------


def _rule(pattern: Pattern) -> _Rule:
    find = re.compile(pattern.pattern)
    mark = f"[redacted:{pattern.name}]" if pattern.replacement is None else pattern.replacement
    return _Rule(find, mark, "", find.groupindex.get("secret", 0))


def _detectors(settings: RedactionSettings) -> Iterator[_Rule]:
    for name, shapes in SHAPES.items():
        for shape in shapes if name in settings.detected else ():
            yield from shape.rules(f"[redacted:{MARKS[name]}]")
    if "email" in settings.detected:
        yield _Rule(re.compile(_EMAIL), f"[redacted:{MARKS['email']}]", "@")


def _literals(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """The values of secret variables and their marks, the longest first; also as JSON spells them."""
    found: dict[str, str] = {}
    for name, value in environ.items():
        stripped = value.strip()
        if len(stripped) >= SHORTEST_VALUE and holds_secret(name):
            mark = f"[redacted:{re.sub('[^A-Za-z0-9_.-]', '_', name)[:40]}]"
            for spelled in (stripped, dump(stripped).decode()[1:-1]):
                found.setdefault(spelled, mark)
    return sorted(found.items(), key=lambda one: (-len(one[0]), one))


def holds_secret(name: str) -> bool:
    """Whether a variable's name says that its value is secret: `GITHUB_TOKEN`, `DB_PASSWORD`; not `SSH_KEY_PATH`."""
    words = name.lower().split("_")
    return name not in HARMLESS and words[-1] not in HARMLESS_ENDS and any(word in SECRET_WORDS for word in words)


# --- replacing -----------------------------------------------------------------------------------------------------


def _outside(text: str, change: Callable[[str], str]) -> str:
    """A text with its pieces changed that are neither a mark nor a `data:` URL."""
    if "[redacted:" not in text and ";base64," not in text:
        return change(text)
    pieces = _KEPT.split(text)
    return "".join(piece if index % 2 else change(piece) for index, piece in enumerate(pieces))


def _replaced(rule: _Rule, text: str) -> str:
    done, pieces = 0, list[str]()
    for found in _found(rule.find, text):
        start, end = found.span(rule.group)
        if start >= done and end > start:
            pieces += text[done:start], rule.mark
            done = end
    return "".join([*pieces, text[done:]]) if pieces else text


def _found(find: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Every match in a text, looked for piece by piece."""
    size, at = len(text), 0
    while at < size:
        end, following = min(at + PIECE + OVERLAP, size), at + PIECE
        for match in find.finditer(text, at, end):
            if match.start() >= at + PIECE:
                break  # the next piece's
            if match.end() == end < size and match.start() > at:
                following = match.start()  # it may go on beyond: looked at again from its start
                break
            yield match
            following = max(following, match.end())
        at = following


def _without_halves(text: str) -> str:
    """A text without the words that its cut went through: one may be half of a secret, which no rule knows."""
    pieces: list[str] = []
    done = 0
    for cut in _CUT.finditer(text):
        before, behind = cut.start(), cut.end()
        if word := _WORD_BEFORE.search(text, max(done, before - CUT_WORD), before):
            pieces += text[done : word.start()], "[redacted:cut]"
            done = before
        if word := _WORD_BEHIND.match(text, behind, behind + CUT_WORD):
            pieces += text[done:behind], "[redacted:cut]"
            done = word.end()
    return "".join([*pieces, text[done:]]) if pieces else text


def _is_json(text: str) -> bool:
    """Whether a text is a JSON object or list."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        load(text.encode())
    except (ValueError, UnicodeEncodeError):
        return False
    return True
