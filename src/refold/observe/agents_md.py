"""AGENTS.md: the user's own file, then the project's from its root down to the working directory (spec §7.2).

Rule 1: what is in force and cannot be told is named in its place, with the reason: nothing is left out silently.
"""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from refold.core.records import JSON
from refold.observe.watch import Unread, Watch

NAMES = ("AGENTS.override.md", "AGENTS.md")  # the first file that exists in a folder counts
ROOT_MARK = ".git"
PROJECT_SEPARATOR = "\n\n--- project-doc ---\n\n"
FILE_SEPARATOR = "\n\n"


class Doc(msgspec.Struct, frozen=True):
    """One file as far as it was read, or why it was not."""

    path: str
    raw: bytes = b""
    size: int = 0  # bytes of the whole file
    problem: str = ""

    def text(self, most: int) -> str:
        """Its first `most` bytes as text, cut between characters; "" when it is blank."""
        if self.problem:
            return f"[{self.path} {self.problem}]\n"
        raw = self.raw[:most]
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(raw, final=len(raw) == self.size)
        return text if text.strip() else ""

    def cut(self, most: int) -> str:
        """What is said of what was left out of it."""
        if self.problem or self.size <= most:
            return ""
        return f"\n[{self.path} goes on: {most:,} of {self.size:,} bytes are above (project_doc_max_bytes)]\n"


def find_agents_md(
    cwd: Path, home: Path | None, max_bytes: int, *, fallbacks: Sequence[str] = (), watch: Watch | None = None
) -> JSON:
    """`{"directory", "text"}` as the world's snapshot holds it, `{}` when there is no text.

    At most `max_bytes` of project files, and of the user's own. `fallbacks`: names that count in a project's folder
    without the usual ones. `watch`: what was read before; only what changed is read again.
    """
    watch = watch or Watch()
    user = "".join(_told(doc, max_bytes) for doc in _docs(home, NAMES, max_bytes, watch)) if home and max_bytes else ""
    project: list[str] = []
    remaining = max_bytes
    for folder in root_to(cwd) if max_bytes else ():
        for doc in _docs(folder, (*NAMES, *fallbacks), max_bytes, watch):
            told = _told(doc, remaining)
            if told:
                project.append(told)
            if not doc.problem:
                remaining = max(0, remaining - len(doc.text(remaining).encode()))
    texts = [part for part in (user, FILE_SEPARATOR.join(project)) if part]
    return {"directory": str(cwd), "text": PROJECT_SEPARATOR.join(texts)} if texts else {}


def _told(doc: Doc, most: int) -> str:
    if most <= 0 and not doc.problem and doc.raw.strip():
        return f"[{doc.path} is left out: the files above it are as long as project_doc_max_bytes allows]\n"
    text = doc.text(most)
    return text + doc.cut(most) if text else ""


def root_to(cwd: Path) -> list[Path]:
    """The folders from the project's root to the working directory; just the latter outside a project."""
    chain = [cwd, *cwd.parents]
    for depth, folder in enumerate(chain):
        if os.path.lexists(folder / ROOT_MARK):
            return chain[: depth + 1][::-1]
    return [cwd]


def _docs(folder: Path, names: Sequence[str], max_bytes: int, watch: Watch) -> Iterator[Doc]:
    """The file with rules in a folder, and before it what has the name of one and leads nowhere. A folder or a pipe of
    that name is nothing."""
    for name in names:
        path = f"{folder}/{name}"
        try:
            found = os.lstat(path)
            found = os.stat(path) if stat.S_ISLNK(found.st_mode) else found  # noqa: PTH116 - a path is a text here
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(path):  # noqa: PTH114
                yield Doc(path, problem="is a link to a file that is not there")
            continue
        except OSError as error:
            yield Doc(path, problem=f"cannot be read: {error.strerror}")
            continue
        if stat.S_ISREG(found.st_mode):
            doc = watch.made(path, found, ("doc", max_bytes), lambda found, path=path: _read(path, found, max_bytes))
            yield Doc(path, problem=str(doc)) if isinstance(doc, Unread) else doc
            return


def _read(path: str, found: os.stat_result, max_bytes: int) -> Doc | Unread:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            raw = file.read(max_bytes + 1)
    except OSError as error:
        return Unread(f"cannot be read: {error.strerror}")
    size = max(found.st_size, len(raw)) if len(raw) > max_bytes else len(raw)
    if b"\0" in raw:
        return Doc(path, size=size, problem=f"is not text but {found.st_size:,} bytes of something else: left out")
    return Doc(path, raw[:max_bytes], size)
