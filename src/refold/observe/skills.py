"""Skills: which folders with a SKILL.md there are, in the project and of the user, and what they say (docs/skills.md).

Rule 1: looking again costs stats only where nothing changed. Rule 2: a file that cannot be used becomes a notice.
"""

from __future__ import annotations

import codecs
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from refold.core.skill import Skill, SkillSettings
from refold.core.world.section import World
from refold.core.world.skills import ID, with_skills
from refold.observe.agents_md import root_to
from refold.observe.watch import Unread, Watch

if TYPE_CHECKING:
    from refold.observe import Looking, Surroundings

FILE = "SKILL.md"
PROJECT_FOLDERS = (".agents/skills", ".codex/skills")  # in each folder from the working directory up to the root
USER_FOLDER = ".agents/skills"  # in the user's home, as other agents have it
DEPTH = 2  # folders of skills may stand in one that groups them
HEAD_BYTES = 64 * 1024  # a head that does not end there is none
MOST_NAMES = 2_000  # that are looked at: whoever has more has put something else there


class Found(msgspec.Struct, frozen=True):
    """The skills in force, nearest first and each name once, and what a person should know of the others."""

    skills: tuple[Skill, ...] = ()
    notices: tuple[str, ...] = ()


class _Finding:
    """Mutable: what one look at the disk has met so far."""

    def __init__(self, settings: SkillSettings, watch: Watch) -> None:
        self._settings, self._watch = settings, watch
        self.skills: dict[str, Skill] = {}
        self.notices: list[str] = []
        self._met: set[tuple[int, int]] = set()  # a link to a file that was met is no other skill
        self._names = 0

    def look_in(self, folder: str, depth: int = DEPTH) -> None:
        """Take the skills of a folder of skills. What lies in a skill's folder is the skill's own."""
        for name in self._children(folder):
            inner = f"{folder}/{name}"
            path = f"{inner}/{FILE}"
            found = self._stat(path)
            if found is not None and stat.S_ISREG(found.st_mode):
                self._take(path, found)
            elif depth > 1:
                self.look_in(inner, depth - 1)

    def _take(self, path: str, found: os.stat_result) -> None:
        if (found.st_dev, found.st_ino) in self._met:
            return
        self._met.add((found.st_dev, found.st_ino))
        skill = self._watch.made(path, found, "skill", lambda _: _skill_in(path))
        if isinstance(skill, str):
            self._say(f"skill {path} is left out: {skill}")
        elif self._settings.allows(skill):
            nearer = self.skills.setdefault(skill.name, skill)
            if nearer is not skill:
                self._say(f"skill {path} is left out: {nearer.path} has the same name, {skill.name}")

    def _say(self, text: str) -> None:
        self.notices.append("".join(mark if mark.isprintable() else "\ufffd" for mark in text))

    def _children(self, folder: str) -> Sequence[str]:
        found = self._stat(folder)
        if found is None or not stat.S_ISDIR(found.st_mode):
            return ()
        names = self._watch.made(folder, found, "names", lambda _: _names_in(folder))
        if isinstance(names, str):
            self._say(f"skills in {folder} cannot be read: {names}")
            return ()
        before, self._names = self._names, self._names + len(names)
        if self._names > MOST_NAMES >= before:
            self._say(f"skills: more than {MOST_NAMES:,} files and folders; not all in {folder} are looked at")
        return names[: max(0, MOST_NAMES - before)]

    def _stat(self, path: str) -> os.stat_result | None:
        try:
            return self._watch.look(path)
        except OSError as error:
            if error.errno != errno.ELOOP:  # a link that leads to itself is nothing
                self._say(f"skills: {path} cannot be looked at: {error.strerror}")
            return None


def see_skills(looking: Looking) -> World:
    """The list of skills; beside it, as a text of the section, what a person should know, a line for each."""
    where = looking.where
    found = skills_of(where, looking.watch)
    budget = where.skills.list_bytes(where.context_window)
    world = with_skills(World({}), found.skills, budget, told=where.skills.include_instructions)
    return World(world.state, {ID: "\n".join(found.notices)})


def skills_of(where: Surroundings, watch: Watch) -> Found:
    """The skills in force in these surroundings."""
    return find_skills(Path(where.cwd), user_folders(where.home, os.environ), where.skills, watch)


def find_skills(cwd: Path, user: Iterable[str], settings: SkillSettings, watch: Watch | None = None) -> Found:
    """Look at the disk once; `user`: the user's own folders of skills. It does not raise: what cannot be used is told.

    `watch`: what was read before; only what changed is read again.
    """
    finding = _Finding(settings, watch or Watch())
    for top in (*project_folders(cwd), *user):
        finding.look_in(top)
    return Found(tuple(finding.skills.values()), tuple(finding.notices))


def user_folders(home: str | None, environ: Mapping[str, str]) -> list[str]:
    """Where a user's own skills may lie: in refold's folder, their home, the real program's folder (only read)."""
    user = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - never raises; "~" where nobody knows
    codex = environ.get("CODEX_HOME") or f"{user}/.codex"
    return [*([f"{home}/skills"] if home else []), f"{user}/{USER_FOLDER}", f"{codex}/skills"]


def project_folders(cwd: Path) -> Iterator[str]:
    """Where a project's skills may lie: nearest first, from the working directory up to the project's root."""
    for folder in reversed(root_to(cwd)):
        yield from (str(folder / name) for name in PROJECT_FOLDERS)


def read_body(skill: Skill, most: int) -> tuple[str, str | None]:
    """What the model is told of a SKILL.md: its text, at most `most` bytes of it; and what a person should know."""
    try:
        raw, size = _beginning(skill.path, most + 1)
    except OSError as error:
        why = f"{skill.path} cannot be read: {error.strerror}"
        return f"[{why}]", f"skill {skill.name}: {why}"
    text = _text(raw[:most], final=len(raw) <= most)
    if text is None:
        why = f"{skill.path} is not UTF-8 text"
        return f"[{why}]", f"skill {skill.name}: {why}"
    if len(raw) <= most:
        return text, None
    told = f"{size:,} bytes, of which {most:,} are told"
    return f"{text}\n[cut: {told}; the rest is in the file]", f"skill {skill.name}: {skill.path} has {told}"


def _names_in(folder: str) -> tuple[str, ...] | str:
    """The names in a folder, or why it is not read. Hidden ones are not for us: the real program keeps skills about
    itself there."""
    try:
        with os.scandir(folder) as entries:
            return tuple(sorted(one.name for one in entries if one.name[0] != "."))
    except OSError as error:
        return Unread(error.strerror or "it is no folder")


def _skill_in(path: str) -> Skill | str:
    """What the head of a file says, or why it is no skill."""
    try:
        raw, _ = _beginning(path, HEAD_BYTES)
    except OSError as error:
        return Unread(f"it cannot be read: {error.strerror}")
    from refold.core.skill_head import read_skill  # most sessions have no skills

    text = _text(raw, final=len(raw) < HEAD_BYTES)
    if text is None:
        return "it is not UTF-8 text"
    return read_skill(text, path, path.split("/")[-2])


def _beginning(path: str, most: int) -> tuple[bytes, int]:
    """The first bytes of a file, and how many it has. Raises OSError, also for what is no file (it may just have
    become a pipe, and nobody writes to it)."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - takes a number
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        return file.read(most), found.st_size


def _text(raw: bytes, *, final: bool) -> str | None:
    """Bytes as text, None when they are none; a character that was cut at the end is left out."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(raw, final=final)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
