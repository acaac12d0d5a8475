"""AGENTS.md: which files are in force in a folder, in what order, and how much of them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from refold.core.config import PROJECT_DOC_MAX_BYTES
from refold.observe.agents_md import find_agents_md


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two folders inside one another."""
    root = tmp_path / "project"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / ".git").mkdir()
    return root


def text(cwd: Path, home: Path | None = None, max_bytes: int = PROJECT_DOC_MAX_BYTES) -> str:
    found = find_agents_md(cwd, home, max_bytes)
    assert found == {} or found["directory"] == str(cwd)
    return found.get("text", "")


def test_files_stand_from_the_root_down_to_the_working_directory(project):
    (project / "AGENTS.md").write_text("root\n")
    (project / "sub" / "deep" / "AGENTS.md").write_text("deep")
    assert text(project / "sub" / "deep") == "root\n\n\ndeep"
    assert text(project / "sub") == "root\n"


def test_files_below_and_above_the_project_are_not_in_force(project):
    (project.parent / "AGENTS.md").write_text("above")
    (project / "sub" / "AGENTS.md").write_text("below")
    assert find_agents_md(project, None, PROJECT_DOC_MAX_BYTES) == {}


def test_outside_a_project_only_the_working_directory_counts(tmp_path):
    (tmp_path / "AGENTS.md").write_text("above")
    (tmp_path / "sub").mkdir()
    assert text(tmp_path / "sub") == ""
    (tmp_path / "sub" / "AGENTS.md").write_text("here")
    assert text(tmp_path / "sub") == "here"


def test_git_may_be_a_file_as_in_a_worktree(project):
    (project / ".git").rmdir()
    (project / ".git").write_text("gitdir: elsewhere")
    (project / "AGENTS.md").write_text("root")
    assert text(project / "sub") == "root"


def test_override_takes_the_place_of_the_file_beside_it_only(project):
    (project / "AGENTS.md").write_text("root")
    (project / "sub" / "AGENTS.md").write_text("sub")
    (project / "sub" / "AGENTS.override.md").write_text("override")
    assert text(project / "sub") == "root\n\noverride"


def test_empty_override_silences_the_file_beside_it(project):
    (project / "AGENTS.md").write_text("root")
    (project / "AGENTS.override.md").write_text(" \n")
    assert text(project) == ""


def test_users_own_file_comes_first(project, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "AGENTS.md").write_text("mine")
    assert text(project, home) == "mine"
    (project / "AGENTS.md").write_text("root")
    assert text(project, home) == "mine\n\n--- project-doc ---\n\nroot"
    (home / "AGENTS.override.md").write_text("mine, now")
    assert text(project, home) == "mine, now\n\n--- project-doc ---\n\nroot"


def test_blank_files_and_missing_homes_say_nothing(project, tmp_path):
    (project / "AGENTS.md").write_text(" \n\t\n")
    assert find_agents_md(project, tmp_path / "none", PROJECT_DOC_MAX_BYTES) == {}


def test_project_files_share_the_limit(project):
    (project / "AGENTS.md").write_text("a" * 30_000)
    (project / "sub" / "AGENTS.md").write_text("b" * 10_000)
    (project / "sub" / "deep" / "AGENTS.md").write_text("c")
    found = text(project / "sub" / "deep")
    assert found == "a" * 30_000 + "\n\n" + "b" * (32 * 1024 - 30_000)


def test_users_file_does_not_use_up_the_projects_limit(project, tmp_path):
    (tmp_path / "AGENTS.md").write_text("u" * 100)
    (project / "AGENTS.md").write_text("a" * 100)
    assert text(project, tmp_path, 10) == "u" * 10 + "\n\n--- project-doc ---\n\n" + "a" * 10


def test_limit_cuts_between_characters(project):
    (project / "AGENTS.md").write_text("äöü")
    assert text(project, max_bytes=5) == "äö"


def test_bytes_that_are_not_text_are_replaced_not_dropped(project):
    (project / "AGENTS.md").write_bytes(b"caf\xe9 rules\xff")
    assert text(project) == "caf\ufffd rules\ufffd"


def test_folder_or_pipe_with_the_name_is_no_file(project):
    (project / "AGENTS.override.md").mkdir()
    (project / "AGENTS.md").write_text("root")
    os.mkfifo(project / "sub" / "AGENTS.md")
    found: list[str] = []
    looking = threading.Thread(target=lambda: found.append(text(project / "sub")), daemon=True)
    looking.start()
    looking.join(10)
    assert found == ["root"]


def test_link_is_followed_and_a_dangling_one_is_nothing(project, tmp_path):
    (tmp_path / "shared.md").write_text("shared")
    (project / "AGENTS.md").symlink_to(tmp_path / "shared.md")
    (project / "sub" / "AGENTS.md").symlink_to(tmp_path / "none.md")
    assert text(project / "sub") == "shared"


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that nobody can read, root included")
def test_unreadable_file_is_named_in_place_of_its_text(project):
    (project / "AGENTS.md").symlink_to("/proc/self/mem")
    (project / "sub" / "AGENTS.md").write_text("sub")
    assert text(project / "sub") == f"[{project}/AGENTS.md cannot be read: Input/output error]\n\n\nsub"
