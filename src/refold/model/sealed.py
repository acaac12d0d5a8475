"""Sealed: how providers say that they cannot read an encrypted item that a history holds.

Such an item is bound to the account, and sometimes to the machine, that made it: after a change of either it is refused
for good, in whatever words the service or a gateway before it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

UNREADABLE = "invalid_encrypted_content"  # the code that every such refusal is given, however it was said
_CODES = frozenset({UNREADABLE, "thinking_signature_invalid"})  # OpenAI's and Azure's; a gateway's
_PHRASES = re.compile(
    r"\bencrypted[_ ]content\b`?.{0,300}?\b(?:could not be (?:verified|decrypted)|was not issued to this caller"
    r"|did not match the target item)"
    r"|\bcould not (?:decode|decrypt) the compaction (?:blob|item)\b"  # xAI
    r"|\binvalid_encrypted_content\b",  # a gateway that repeats the error as text
    re.IGNORECASE,
)
_NAMED = re.compile(r"\bitem\s+['\"`]?([a-z]+_[\w-]+)", re.IGNORECASE)


def is_unreadable(codes: Iterable[str], text: str) -> bool:
    """Whether an error with these codes and this text says that an encrypted item cannot be read."""
    return any(code.strip().lower() in _CODES for code in codes) or _PHRASES.search(text) is not None


def named_item(text: str) -> str | None:
    """The id of the item that cannot be read, where the error names it."""
    found = _NAMED.search(text)
    return found[1] if found else None
