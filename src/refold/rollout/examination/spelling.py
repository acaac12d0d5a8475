"""Spelling: what is wrong with the bytes of one line, and which whole records can be told apart in a broken one."""

from __future__ import annotations

import json
from typing import NamedTuple

import msgspec

from refold.core.jsonio import JSON, is_object, load

ENDS = b" \t\r\n"  # what the reader takes off a line
START = '{"timestamp":"'  # how a record with an envelope begins; inside a text its quotes would be escaped
MOST_STARTS = 64  # places in one broken line at which a record is looked for: more are noise

strictly = msgspec.json.Decoder().decode
_forgiving = json.JSONDecoder(strict=False).raw_decode


class Spelled(NamedTuple):
    """A line's object (None: it holds none, or is blank), and what is odd about how it is spelled: kind and detail."""

    value: JSON | None
    faults: tuple[tuple[str, str], ...] = ()


def spelled(raw: bytes, offset: int) -> Spelled:
    """Read one line, with its end, that begins `offset` bytes into the file. Never raises."""
    if raw[-2:] == b"}\n" and raw[:1] == b"{":  # most are
        try:
            value = strictly(raw)
            if is_object(value):
                return Spelled(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    body = raw.strip(ENDS)
    if not body:
        return Spelled(None, (("blank_line", ""),))
    around = tuple(_around(raw, body))
    try:
        value, warning = load(body)
    except ValueError as error:
        return Spelled(None, (*around, _broken(raw, body, " ".join(str(error).split()))))
    if not is_object(value):
        return Spelled(None, (*around, ("not_an_object", f"{len(body):,} bytes")))
    return Spelled(value, (*around, *_replaced(raw, body, offset, warning)))


def _around(raw: bytes, body: bytes) -> list[tuple[str, str]]:
    """What stands around a line."""
    found = [("crlf", "")] if raw.endswith(b"\r\n") else []
    end = raw.removesuffix(b"\n").removesuffix(b"\r")
    return found + ([("spaces_around", "")] if end != body else [])


def _replaced(raw: bytes, body: bytes, offset: int, warning: str | None) -> list[tuple[str, str]]:
    """What a forgiving reader let pass in a line that it could read."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return [("invalid_utf8", f"from byte {offset + error.start:,} on")]
    if warning is not None:
        return [("half_surrogate", "")]
    try:
        strictly(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return [("loose_json", " ".join(str(error).split()))]
    return []


def _broken(raw: bytes, body: bytes, why: str) -> tuple[str, str]:
    """The kind of a line that is not JSON, and what is known of it."""
    if not body.strip(b"\x00"):
        return "torn_line", f"{len(body):,} NUL bytes: the disk lost what was written here"
    whole = len(parts_of(body))
    if whole:
        records = "1 whole record" if whole == 1 else f"{whole} whole records"
        return "glued_lines", f"{records} in {len(body):,} bytes"
    kind = "torn_line" if not raw.endswith(b"\n") or _is_cut(body) else "not_json"
    return kind, f"{len(body):,} bytes: {why}"


def _is_cut(body: bytes) -> bool:
    """Whether a text begins like an object and only lacks its end."""
    if not body.startswith(b"{"):
        return False
    try:
        strictly(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return "truncated" in str(error)
    return False


def parts_of(body: bytes) -> list[bytes]:
    """The whole records in a line that is not JSON, in order; a record that stands there twice in a row once."""
    text = body.decode("utf-8", "replace")
    found: list[bytes] = []
    at, is_begin = 0, True  # whether a record may begin here without an envelope: nothing broken stands before it
    for _ in range(MOST_STARTS):
        while at < len(text) and text[at] in " \t\r\n\x00":
            at += 1
        end = _end_of(text, at, bare=is_begin)
        is_begin = end is not None
        if end is not None:
            part = text[at:end].encode("utf-8", "replace")
            if not found or found[-1] != part:
                found.append(part)
            at = end
            continue
        at = text.find(START, at + 1)
        if at < 0:
            break
    return found


def _end_of(text: str, start: int, *, bare: bool) -> int | None:
    """Where the record ends that begins at a place; None where none does."""
    if not text.startswith("{" if bare else START, start):
        return None
    try:
        value, end = _forgiving(text, start)
    except (ValueError, RecursionError):
        return None
    if not is_object(value):
        return None
    is_record = isinstance(value.get("type"), str) and is_object(value.get("payload"))
    return end if is_record or (bare and value) else None
