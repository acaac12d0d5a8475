"""Seal: the `encrypted_content` of a compaction item: what only this gateway can read, and only for who got it.

A token is base64url (without padding) of: "rf" and the format's number · key id (8 bytes) · nonce (12) · AES-256-GCM of
the payload and its tag. The associated data are the format's name and the tenant: a token that another tenant sends
does not open. It is not bound to a model: what is sealed is text, which any model can read.
Rule 1: the first key of a ring seals, every key opens. Rule 2: no error says why a token does not open.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from refold.errors import ConfigError, RequestRefused
from refold.model.sealed import UNREADABLE

MAGIC = b"rf\x01"  # three bytes: four characters of base64, so that a token is known by its beginning
PREFIX = base64.urlsafe_b64encode(MAGIC).decode()
CONTEXT = b"refold compaction 1\0"  # of the associated data: a token of another use does not open as one of these
KEY_BYTES, ID_BYTES, NONCE_BYTES, TAG_BYTES = 32, 8, 12, 16
MOST_CHARACTERS = 16 << 20  # of a token; summaries are some thousand

_HEAD = len(MAGIC) + ID_BYTES + NONCE_BYTES


class KeyRing:
    """The keys of a gateway, the newest first. Its text form never holds one."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        """Raises ConfigError for no key, or one of another length."""
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ConfigError("keys", f"at least one key of {KEY_BYTES} bytes is needed")
        self._keys = {_id_of(key): key for key in keys}
        self._newest = _id_of(keys[0])

    def __repr__(self) -> str:
        return f"KeyRing({len(self._keys)} keys)"

    def seal(self, payload: bytes, tenant: str) -> str:
        """A token that `open` reads for the same tenant."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(NONCE_BYTES)
        sealed = AESGCM(self._keys[self._newest]).encrypt(nonce, payload, _bound(tenant))
        return base64.urlsafe_b64encode(MAGIC + self._newest + nonce + sealed).decode().rstrip("=")

    def open(self, token: str, tenant: str, *, item_id: str | None = None) -> bytes:
        """The payload. Raises RequestRefused (400, `invalid_encrypted_content`) for a token that this gateway did not
        make for this tenant, or that was changed."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        raw = _bytes_of(token)
        key = self._keys.get(raw[len(MAGIC) : len(MAGIC) + ID_BYTES])
        if not raw.startswith(MAGIC) or key is None or len(raw) < _HEAD + TAG_BYTES:
            raise unreadable(item_id)
        try:
            return AESGCM(key).decrypt(raw[_HEAD - NONCE_BYTES : _HEAD], raw[_HEAD:], _bound(tenant))
        except InvalidTag:
            raise unreadable(item_id) from None


def is_ours(token: str) -> bool:
    """Whether a token looks like one that a gateway of refold made, whichever and for whomever."""
    return token.startswith(PREFIX)


def unreadable(item_id: str | None = None) -> RequestRefused:
    """The error of an item that cannot be read, as the provider itself words it."""
    which = f" for item {item_id}" if item_id else ""
    return RequestRefused(
        f"The encrypted content{which} could not be verified. It was made with another key or for another caller, or "
        "it was changed: send the items that it stands for, or leave it out.",
        code=UNREADABLE,
        param="input",
    )


def _bound(tenant: str) -> bytes:
    return CONTEXT + tenant.encode()


def _id_of(key: bytes) -> bytes:
    return sha256(b"refold key id\0" + key).digest()[:ID_BYTES]


def _bytes_of(token: str) -> bytes:
    """What a token spells; nothing for what is not spelled exactly as `seal` spells."""
    if len(token) > MOST_CHARACTERS:
        return b""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
    return raw if base64.urlsafe_b64encode(raw).decode().rstrip("=") == token else b""


# --- where keys are kept -----------------------------------------------------------------------------------


def read_keys(text: str, where: str) -> KeyRing:
    """The keys of a text: one a line (or between commas), 32 bytes in base64, the newest first; `#` begins a remark.

    Raises ConfigError that names `where` and the line, and never shows a key.
    """
    keys: list[bytes] = []
    for number, word in words_of(text):
        try:
            key = base64.b64decode(word.rstrip("=") + "=" * (-len(word.rstrip("=")) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise ConfigError(where, f"line {number} is no key: {KEY_BYTES} bytes in base64 are needed")
        keys.append(key)
    if not keys:
        raise ConfigError(where, f"holds no key: write {KEY_BYTES} random bytes in base64 on one line")
    return KeyRing(tuple(keys))


def words_of(text: str) -> Iterator[tuple[int, str]]:
    """What stands in a file of secrets, each with its line's number: one a line or between commas, without remarks."""
    for number, line in enumerate(text.splitlines(), 1):
        for word in line.partition("#")[0].split(","):
            if word.strip():
                yield number, word.strip()


def new_key() -> str:
    """A new key as a line of a key file."""
    return base64.urlsafe_b64encode(os.urandom(KEY_BYTES)).decode()


def key_file(path: Path, *, make: bool) -> KeyRing:
    """The keys of a file; with `make`, a file with a new key where there is none (only its owner may read it).

    Raises ConfigError.
    """
    try:
        if make and not path.exists():
            _write_new(path)
        return read_keys(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError:
        raise ConfigError(str(path), "is no text: a key file holds one key a line, in base64") from None
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}; keys are needed to seal items") from None


def _write_new(path: Path) -> None:
    """Several workers may begin at once: the first one's file stays, whole."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(
                f"# Keys of refold's gateway, the newest first. What it sealed is lost without them.\n{new_key()}\n"
            )
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
