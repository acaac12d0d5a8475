"""Blobs: a session's long texts, each stored once by its SHA-256, beside its rollout (docs/decisions/0021).

Rule 1: a blob is in its file, whole, before a line refers to it; a crash leaves at most one too many.
Rule 2: in such a rollout every object with our key is ours: one of somebody else's is wrapped before it is written.
Rule 3: a blob that is missing or damaged costs its text alone: words that name it stand there, and nothing is raised.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from refold.core.jsonio import MAX_DEPTH, TOO_DEEP, dump, dump_strict, is_list, is_object
from refold.core.records import JSON, Record, SessionStarted
from refold.errors import UnusableItem

PLAIN = "paginated"  # the history mode of other new files: lines carry ordinals, and all that they say
BLOBS = "refold-blobs"  # the history mode of these; the real program refuses one that it does not know
MODES = ("legacy", PLAIN, BLOBS)  # that this version reads
NUMBERED_MODES = (PLAIN, BLOBS)  # whose lines carry ordinals
SUFFIX = ".blobs"  # of the folder, in the place of the rollout's `.jsonl`
KEY = "$blob"  # of an object in a text's place: {"$blob": "<sha256>", "bytes": n}
WRAPPED = "value"  # {"$blob": null, "value": {…}}: an object that has this key itself
MARK = b'"$blob"'  # what a line with either holds; inside a text its quotes would be escaped
IDENTITY = "session_meta"  # lines of this type are left alone: who a session is needs no other file
LONG = 16 * 1024  # bytes: below, a file of its own costs more than a copy in each checkpoint
LONGEST = 1 << 30  # bytes; a line cannot hold more either
KEPT = 128 << 20  # bytes that a reading holds, so that checkpoints share what they refer to
WITHOUT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EROFS)  # a file system that knows no sync has kept what it can
DEEPER = 2  # levels that a reference, or what is wrapped, adds to what was short enough
DIGEST = re.compile(r"[0-9a-f]{64}")
MISSING = "missing or damaged: "  # how a warning begins that names blobs
_REFERENCE = re.compile(rb'\{"\$blob":"[0-9a-f]{64}","bytes":\d+\}')  # as it stands in a line


def folder_of(path: Path) -> Path:
    """Where the blobs of a rollout lie, whether it is compressed or not."""
    found = path.resolve()
    return found.with_name(found.name.removesuffix(".zst").removesuffix(".jsonl") + SUFFIX)


def refers(raw: bytes) -> bool:
    """Whether a line of a file that does not say its mode looks as if it referred to a blob."""
    return MARK in raw and _REFERENCE.search(raw) is not None


# --- in a line -------------------------------------------------------------------------------------------------------


def put_away(value: Any, put: Callable[[str], Any], long: int = LONG) -> Any:
    """A value with what `put` gives in the place of each text that may have `long` bytes.

    Raises UnusableItem (too deep).
    """
    try:
        return _away(value, put, long // 4)  # a character has at most four
    except RecursionError:
        raise UnusableItem(TOO_DEEP) from None


def put_back(value: Any, get: Callable[[str, Any], tuple[str, bool]]) -> Any:
    """A value with the texts that its references mean; `get` tells each, and whether it is the true one.

    Raises UnusableItem (too deep).
    """
    try:
        return _back(value, get)[0]
    except RecursionError:
        raise UnusableItem(TOO_DEEP) from None


def _away(value: Any, put: Callable[[str], Any], least: int) -> Any:
    if isinstance(value, str):
        return put(value) if len(value) >= least else value
    if is_object(value):
        changed: JSON = {}
        for key, part in value.items():
            if (new := _away(part, put, least)) is not part:
                changed[key] = new
        found = {**value, **changed} if changed else value
        return {KEY: None, WRAPPED: found} if KEY in value else found
    if is_list(value):
        parts: list[Any] = []
        for part in value:
            parts.append(_away(part, put, least))
        return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
    return value


def _back(value: Any, get: Callable[[str, Any], tuple[str, bool]]) -> tuple[Any, bool]:
    """The value, and whether it is the true one."""
    if is_object(value):
        match value:
            case {"$blob": str(digest), "bytes": size}:
                return get(digest, size)
            case {"$blob": None, "value": dict(inner)}:
                return _object_back(inner, get), True
            case _:
                return _object_back(value, get), True
    if is_list(value):
        parts: list[Any] = []
        for part in value:
            parts.append(_back(part, get)[0])
        return parts, True
    return value, True


def _object_back(value: JSON, get: Callable[[str, Any], tuple[str, bool]]) -> JSON:
    found: JSON = {}
    lost: str | None = None
    for key, part in value.items():
        found[key], is_true = _back(part, get)
        lost = lost if is_true else key
    return found if lost is None else _without(found, lost)


def _without(value: JSON, key: str) -> JSON:
    """An object in which words stand where a text is lost, so that a provider still takes it."""
    words = value[key]
    match value.get("type"), key:
        case "input_image" | "input_audio", _:
            return {"type": "input_text", "text": words}
        case "reasoning", "encrypted_content":
            told = value.get("summary")
            said = {"type": "summary_text", "text": words}
            return {**value, "summary": [*(told if is_list(told) else []), said], key: None}
        case "image_generation_call", "result":
            return {**value, "revised_prompt": words, key: ""}
        case "function_call", "arguments":
            return {**value, key: dump({"missing": words}).decode()}
        case _:
            return value


# --- on the disk -----------------------------------------------------------------------------------------------------


class BlobWriter:
    """Mutable: it knows which blobs are in their files, and which of them the disk was not asked to keep yet."""

    def __init__(self, path: Path, long: int = LONG) -> None:
        self._path = path
        self._folder = folder_of(path)
        self._long = long
        self._known: set[str] = set()
        self._unsynced: list[str] = []

    @classmethod
    def beginning(cls, records: Sequence[Record], path: Path) -> BlobWriter | None:
        """The writer for a new file, if the identity that it begins with asks for one."""
        first = records[0] if records else None
        return cls(path) if isinstance(first, SessionStarted) and first.history_mode == BLOBS else None

    def beside(self, path: Path) -> Callable[[JSON, int], bytes]:
        """`dump`, for the rollout as it is called now."""
        self.follow(path)
        return self.dump

    def follow(self, path: Path) -> None:
        """The rollout has this name now: what its lines refer to has to lie beside it, too."""
        if path is self._path or path == self._path:
            return
        before, self._path, self._folder = self._folder, path, folder_of(path)
        self._known.clear()
        with contextlib.suppress(OSError):
            self._unsynced += copy_blobs(before, self._folder)

    def dump(self, line: JSON, levels: int = MAX_DEPTH) -> bytes:
        """The line as it is written, `stored`. Raises what `dump_strict` raises."""
        if line.get("type") != "compacted":  # that is nearly always long, and need not be made twice
            raw = dump_strict(line, levels=levels)
            if len(raw) < self._long and MARK not in raw:
                return raw
        return dump_strict(self.stored(line), levels=levels + DEEPER)

    def stored(self, line: JSON) -> JSON:
        """The line with references in the place of its long texts, which are in their files then.

        Where a file cannot be written, the text stays in the line. Raises UnusableItem, UnicodeEncodeError.
        """
        return line if line.get("type") == IDENTITY else put_away(line, self._put, self._long)

    def sync(self) -> None:
        """Ask the disk to keep what lines refer to. Raises OSError when it says that it cannot."""
        if not self._unsynced:
            return
        while self._unsynced:
            sync_path(self._folder / self._unsynced[-1])
            self._unsynced.pop()
        sync_path(self._folder)

    def _put(self, text: str) -> Any:
        data = text.encode()
        if not self._long <= len(data) <= LONGEST:
            return text
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._known or not (self._folder / digest).exists():
            try:
                if read_blob(self._folder, digest, len(data)) is None:
                    _write(self._folder, digest, data)
            except OSError:
                return text  # whether the line itself can be written is for its own file to say
            self._known.add(digest)
            self._unsynced.append(digest)
        return {KEY: digest, "bytes": len(data)}


class BlobReader:
    """Mutable: it keeps what it read last, so many bytes."""

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self._folder = folder
        self._most = kept
        self._kept: OrderedDict[str, tuple[str, bool]] = OrderedDict()
        self._size = 0  # bytes of it
        self._missing: dict[str, None] = {}  # of the line that is being read

    def whole(self, line: JSON) -> tuple[JSON, str | None]:
        """A line with its texts, and a warning where some of them are missing. Never raises."""
        if line.get("type") == IDENTITY or KEY in line:  # a line itself is no reference, whoever wrote it
            return line, None
        self._missing.clear()
        try:
            found = put_back(line, self._get)
        except UnusableItem as error:
            return line, str(error)
        return found, f"{MISSING}{', '.join(self._missing)}" if self._missing else None

    def _get(self, digest: str, size: Any) -> tuple[str, bool]:
        if digest in self._kept:
            self._kept.move_to_end(digest)
        else:
            text = read_blob(self._folder, digest, size)
            self._kept[digest] = (_words(digest, size), False) if text is None else (text, True)
            self._size += len(self._kept[digest][0])
            while self._size > self._most and len(self._kept) > 1:
                self._size -= len(self._kept.popitem(last=False)[1][0])
        if not self._kept[digest][1]:
            self._missing[_name(digest)] = None
        return self._kept[digest]


def read_blob(folder: Path, digest: str, size: Any) -> str | None:
    """The text of a blob of so many bytes; None where it is missing, or is not what its name says."""
    if DIGEST.fullmatch(digest) is None or not isinstance(size, int) or not 0 <= size <= LONGEST:
        return None
    try:
        fd = os.open(folder / digest, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            about = os.fstat(fd)
            data = file.read() if stat.S_ISREG(about.st_mode) and about.st_size == size else b""
        if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
            return None
        return data.decode()
    except (OSError, UnicodeDecodeError):
        return None


def copy_blobs(folder: Path, other: Path) -> list[str]:
    """Let all blobs of a folder lie in another one, too: the names of those that are new there. Raises OSError."""
    new: list[str] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if DIGEST.fullmatch(path.name) and not (other / path.name).exists():
            _write(other, path.name, path.read_bytes())
            new.append(path.name)
    return new


def _write(folder: Path, digest: str, data: bytes) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = folder / f"{digest}.{os.getpid()}.part"
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
        aside.replace(folder / digest)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def _name(digest: str) -> str:
    """How a person is told of a blob: its beginning is enough to find it."""
    return f"blob {digest[:12]}" if DIGEST.fullmatch(digest) else "a blob without a name"


def _words(digest: str, size: Any) -> str:
    amount = f" of {size:,} bytes" if isinstance(size, int) else ""
    return f"[a text or picture{amount} is missing here: {_name(digest)}]"


def sync_path(path: Path) -> None:
    """Ask the disk to keep a file or a folder. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return  # somebody took it away: there is nothing to keep
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in WITHOUT_SYNC:
            raise
    finally:
        os.close(fd)
