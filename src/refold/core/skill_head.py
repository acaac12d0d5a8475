"""Skill head: what a SKILL.md says of itself in its first lines: `name`, `description`; a small part of YAML.

Rule 1: it is read strictly, and what cannot be read is said. Rule 2: nothing in it is markup. Rule 3: nothing raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from refold.core.skill import Skill

NAME_CHARS = 64  # the format's own limits
DESCRIPTION_CHARS = 1_024

_KEY = re.compile(r"([A-Za-z_][\w-]*)[ \t]*:(?:[ \t]+(.*))?$")
_NAME = re.compile(r"\w[\w .:-]*")
_FOLDED = re.compile(r"[>|][+-]?[0-9]?[+-]?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "/": "/", '"': '"', "\\": "\\", " ": " "}
_NO_TEXT = tuple("[{&*!%@`")  # what begins a value that is no text


def read_skill(text: str, path: str, folder: str) -> Skill | str:
    """The skill that a SKILL.md describes, or one line that says why it is none.

    `text` begins where the file does; `folder` is the name of its folder, which counts where the head has no `name`.
    """
    values = _head(text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n"))
    if isinstance(values, str):
        return values
    found: dict[str, str] = {}
    for key in ("name", "description"):
        value, why = _value(values.get(key, []))
        if why:
            return f"its {key} {why}"
        found[key] = " ".join(value.split())
    name = found["name"] or folder
    if not _NAME.fullmatch(name) or len(name) > NAME_CHARS:
        return f"its name {name[:80]!r} is not made of at most {NAME_CHARS} letters, digits, spaces and . : _ -"
    if not found["description"]:
        return "its head has no description: say there in a line what it is for, and when to use it"
    if _CONTROL.search(path):
        return "its path has a character that cannot be written in a line"
    return Skill(name, _shortened(_CONTROL.sub(" ", found["description"]), DESCRIPTION_CHARS), path)


def _head(lines: Sequence[str]) -> Mapping[str, list[str]] | str:
    """Each key's lines (the first stands beside it), or why there are none."""
    if not lines or lines[0].rstrip() != "---":
        return "it does not begin with a head: a line `---`, then `name: …` and `description: …`, then `---`"
    values: dict[str, list[str]] = {}
    current: list[str] | None = None
    for number, line in enumerate(lines[1:], 2):
        if line.rstrip() in ("---", "..."):
            return values
        if not line.strip() or line.startswith("#"):
            continue
        if line[0] in " \t-":  # goes on with the key above: more of its text, or a list or table under it
            if current is None:
                return f"line {number} of its head is not `key: value`"
            current.append(line.strip())
        elif (found := _KEY.match(line.rstrip())) is None:
            return f"line {number} of its head is not `key: value`"
        elif found[1] in values:
            return f"line {number} of its head says {found[1]} a second time"
        else:
            current = values[found[1]] = [(found[2] or "").strip()]
    return "its head has no end: a line `---`"


def _value(lines: Sequence[str]) -> tuple[str, str | None]:
    """The text of a value: plain, in quotes, or on the lines below; and what is wrong with it."""
    text = " ".join(lines[1:] if lines and _FOLDED.fullmatch(lines[0]) else lines).strip()
    if lines and _FOLDED.fullmatch(lines[0]):
        return text, None
    if text[:1] in ("'", '"'):
        return _unquoted(text)
    if text.startswith(_NO_TEXT) or text.startswith("- "):
        return "", "is not a text: put it in quotes if it is meant as one"
    return text.partition(" #")[0].rstrip() if not text.startswith("#") else "", None


def _unquoted(text: str) -> tuple[str, str | None]:
    quote = text[0]
    whole = re.fullmatch(r"'((?:[^']|'')*)'(?:\s+#.*)?" if quote == "'" else r'"((?:[^"\\]|\\.)*)"(?:\s+#.*)?', text)
    if whole is None:
        return "", f"has a quote {quote} that does not end"
    if quote == "'":
        return whole[1].replace("''", "'"), None
    unknown = [
        mark for mark in re.findall(r"\\(u[0-9A-Fa-f]{4}|.)", whole[1]) if len(mark) == 1 and mark not in _ESCAPES
    ]
    if unknown:
        return "", f"has an escape that cannot be read: \\{unknown[0]}"
    return re.sub(r"\\(u[0-9A-Fa-f]{4}|.)", _escape, whole[1]), None


def _escape(found: re.Match[str]) -> str:
    mark = found[1]
    return chr(int(mark[1:], 16)) if len(mark) > 1 else _ESCAPES[mark]


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
