"""AGENTS.md: the user's own file, then the project's from its root down to the working directory (spec §7.2)."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

from refold.core.records import JSON

NAMES = ("AGENTS.override.md", "AGENTS.md")  # the first file that exists in a project's folder counts
ROOT_MARK = ".git"
PROJECT_SEPARATOR = "\n\n--- project-doc ---\n\n"
FILE_SEPARATOR = "\n\n"


def find_agents_md(cwd: Path, home: Path | None, max_bytes: int) -> JSON:
    """`{"directory", "text"}` as the world's snapshot holds it, `{}` when there is no text.

    At most `max_bytes` of project files; an unreadable file is named in the text instead of its content.
    """
    user = next((text for path in _files(home) if (text := _read(path, max_bytes))), None) if home else None
    project: list[str] = []
    remaining = max_bytes
    for folder in _root_to(cwd):
        text = next((_read(path, remaining) for path in _files(folder)), None)
        if text:
            project.append(text)
            remaining -= len(text.encode())
        if remaining <= 0:
            break
    texts = [part for part in (user, FILE_SEPARATOR.join(project)) if part]
    return {"directory": str(cwd), "text": PROJECT_SEPARATOR.join(texts)} if texts else {}


def _root_to(cwd: Path) -> list[Path]:
    """The folders from the project's root to the working directory; just the latter outside a project."""
    chain = [cwd, *cwd.parents]
    for depth, folder in enumerate(chain):
        if os.path.lexists(folder / ROOT_MARK):
            return chain[: depth + 1][::-1]
    return [cwd]


def _files(folder: Path) -> list[Path]:
    """The files with rules in a folder; a folder or a pipe of that name is none."""
    return [path for name in NAMES if os.path.isfile(path := folder / name)]  # noqa: PTH113 - is_file raises


def _read(path: Path, max_bytes: int) -> str | None:
    """The text of a file, cut between characters; None when it is blank, a note when it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(max_bytes)
    except OSError as error:
        return f"[{path} cannot be read: {error.strerror}]\n"
    whole = len(raw) < max_bytes
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(raw, final=whole)
    return text if text.strip() else None
