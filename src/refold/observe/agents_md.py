"""AGENTS.md: the user's own file, then the project's from its root down to the working directory (spec §7.2)."""

from __future__ import annotations

from pathlib import Path

from refold.core.records import JSON

NAMES = ("AGENTS.override.md", "AGENTS.md")  # the first that exists in a folder counts
ROOT_MARK = ".git"
PROJECT_SEPARATOR = "\n\n--- project-doc ---\n\n"
FILE_SEPARATOR = "\n\n"


def find_agents_md(cwd: Path, home: Path | None, max_bytes: int) -> JSON:
    """`{"directory", "text"}` as the world's snapshot holds it, `{}` when there is no text.

    At most `max_bytes` of project files; an unreadable file is named in the text instead of its content.
    """
    user = _read_first(home, max_bytes) if home else None
    project: list[str] = []
    remaining = max_bytes
    for folder in _root_to(cwd):
        text = _read_first(folder, remaining)
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
        if (folder / ROOT_MARK).exists():
            return chain[: depth + 1][::-1]
    return [cwd]


def _read_first(folder: Path, max_bytes: int) -> str | None:
    for name in NAMES:
        path = folder / name
        try:
            with path.open("rb") as file:
                raw = file.read(max_bytes)
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"[{path} cannot be read: {error.strerror}]\n"
        text = raw.decode("utf-8", "ignore")
        if text.strip():
            return text
    return None
