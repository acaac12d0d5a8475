"""Watch: what did not change is not read again, and what changed always is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import PROJECT_DOC_MAX_BYTES
from refold.observe.agents_md import find_agents_md
from refold.observe.watch import Watch

LONG_AGO = 1_600_000_000  # seconds since 1970

LISTENING: list[list[str]] = []  # who wants to know what is opened: a hook cannot be taken away again


def heard(name: str, args: tuple[Any, ...]) -> None:
    if LISTENING and name == "open":
        LISTENING[-1].append(str(args[0]))


sys.addaudithook(heard)


def opened_by(project: Path, work: Callable[[], object]) -> list[str]:
    """The files of a project that are opened while something is done."""
    LISTENING.append([])
    try:
        work()
    finally:
        found = LISTENING.pop()
    return [path for path in found if path.startswith(str(project))]


def written(path: Path, text: str, at: int = LONG_AGO) -> None:
    path.write_text(text)
    os.utime(path, (at, at))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "sub").mkdir()
    written(tmp_path / "AGENTS.md", "one")
    written(tmp_path / "sub" / "AGENTS.md", "two")
    return tmp_path


def look(project: Path, watch: Watch) -> str:
    return find_agents_md(project / "sub", None, PROJECT_DOC_MAX_BYTES, watch=watch)["text"]


def test_what_did_not_change_is_not_opened_again(project: Path) -> None:
    watch = Watch()
    files = [str(project / "AGENTS.md"), str(project / "sub" / "AGENTS.md")]
    assert opened_by(project, lambda: look(project, watch)) == files
    assert opened_by(project, lambda: look(project, watch)) == []
    assert look(project, watch) == "one\n\ntwo"


def test_of_two_files_only_the_changed_one_is_opened(project: Path) -> None:
    watch = Watch()
    look(project, watch)
    written(project / "AGENTS.md", "six", LONG_AGO + 1)
    assert opened_by(project, lambda: look(project, watch)) == [str(project / "AGENTS.md")]
    assert look(project, watch) == "six\n\ntwo"


def test_a_file_that_took_the_place_of_another_counts_though_size_and_time_are_the_same(project: Path) -> None:
    watch = Watch()
    look(project, watch)
    written(project / "new", "six")
    (project / "new").rename(project / "AGENTS.md")
    assert look(project, watch) == "six\n\ntwo"


def test_a_change_within_the_same_tick_of_the_clock_is_seen(project: Path) -> None:
    watch = Watch()
    for text in ("aaa", "bbb", "ccc"):
        (project / "AGENTS.md").write_text(text)  # the same size each time, and perhaps the same time
        assert look(project, watch) == f"{text}\n\ntwo"


def test_what_comes_and_goes_is_seen(project: Path) -> None:
    watch = Watch()
    look(project, watch)
    written(project / "AGENTS.override.md", "over")
    assert look(project, watch) == "over\n\ntwo"
    (project / "AGENTS.override.md").unlink()
    assert look(project, watch) == "one\n\ntwo"


def test_a_link_counts_by_what_it_leads_to(project: Path) -> None:
    watch = Watch()
    written(project / "shared", "one")
    (project / "AGENTS.md").unlink()
    (project / "AGENTS.md").symlink_to("shared")
    look(project, watch)
    written(project / "shared", "changed", LONG_AGO + 5)
    assert look(project, watch) == "changed\n\ntwo"


def test_what_is_made_of_one_path_is_told_apart_by_kind(tmp_path: Path) -> None:
    written(tmp_path / "file", "text")
    watch, path = Watch(), str(tmp_path / "file")

    def failing(found: Any) -> str:
        raise AssertionError("made again")

    assert watch.seen(path, "a", lambda _: "A") == "A"
    assert watch.seen(path, "b", lambda found: found.st_size) == 4
    assert watch.seen(path, "a", failing) == "A"
    assert watch.seen(str(tmp_path / "none"), "a", failing) is None
    assert watch.seen(f"{path}/below", "a", failing) is None
