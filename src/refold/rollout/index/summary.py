"""Summary: what a list of sessions shows of one, and what a look at the head of its file says of it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from refold.errors import RolloutError, RolloutNotFound
from refold.rollout.index.facts import Facts
from refold.rollout.reader import read_lines

HEAD_LINES = 60  # a session's first words stand near its start
HEAD_BYTES = 256 * 1024  # and a list of sessions that has no index must not read whole files


class Summary(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What a list of sessions shows of one. None for a number: only the file's head was read, which does not say it."""

    id: str
    file: str  # its whole path; a text, because thousands of paths are dearer than the rest of a list
    created: datetime
    modified: datetime
    cwd: str = ""  # where its newest turn worked; where it began, if only the head was read
    branch: str = ""  # of git, where the session began
    name: str = ""  # given by a person
    named_at: datetime | None = None
    first_text: str = ""
    forked_from: str | None = None  # the session whose history it began with
    model: str = ""
    tokens: int | None = None  # used by the session in all
    compactions: int | None = None
    turns: int | None = None  # in which somebody spoke
    size: int = 0  # bytes
    own: bool = True  # False: the real program's home, read only
    archived: bool = False
    problem: str | None = None

    @property
    def path(self) -> Path:
        return Path(self.file)

    @property
    def title(self) -> str:
        """What a person knows it by: its name, or the first words in it."""
        return self.name or self.first_text


def summary_of(thread_id: str, path: Path, own: bool, *, archived: bool = False) -> Summary:
    """What the head of one file says. A damaged file is listed with its problem. Raises RolloutNotFound."""
    try:
        about = path.stat()
    except OSError:
        raise RolloutNotFound(f"no such file: {path}") from None
    facts = Facts()
    try:
        for count, line in enumerate(read_lines(path, head=HEAD_BYTES)):
            facts.take(line)
            if (facts.has_identity and facts.first_text) or count >= HEAD_LINES:
                break
    except RolloutError as error:
        facts.problem = str(error)
    return summed_up(facts, thread_id, str(path), about, own=own, archived=archived, is_whole=False)


def summed_up(
    facts: Facts, thread_id: str, file: str, about: os.stat_result, *, own: bool, archived: bool, is_whole: bool = True
) -> Summary:
    """The facts as a list shows them; `thread_id` is what the file's name says, `is_whole`: all of it was read."""
    modified = datetime.fromtimestamp(about.st_mtime, UTC)
    return Summary(
        id=facts.id or thread_id,
        file=file,
        created=time_of(facts.stamp) or modified,
        modified=modified,
        cwd=facts.cwd,
        branch=facts.branch,
        name=facts.name,
        named_at=time_of(facts.named_at),
        first_text=facts.first_text,
        forked_from=facts.parent,
        model=facts.model,
        tokens=facts.tokens if is_whole else None,
        compactions=facts.compactions if is_whole else None,
        turns=facts.turns if is_whole else None,
        size=about.st_size,
        own=own,
        archived=archived,
        problem=facts.problem or (None if facts.has_identity else f"{file}: no session_meta line"),
    )


def time_of(text: str) -> datetime | None:
    """A record's time in UTC: with or without milliseconds, with `Z` or an offset; None when it is not a time."""
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
