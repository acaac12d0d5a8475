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
    rest = 32 * 1024 - 30_000
    assert text(project / "sub" / "deep") == (
        "a" * 30_000
        + "\n\n"
        + "b" * rest
        + f"\n[{project}/sub/AGENTS.md goes on: {rest:,} of 10,000 bytes are above (project_doc_max_bytes)]\n"
        + f"\n\n[{project}/sub/deep/AGENTS.md is left out: "
        + "the files above it are as long as project_doc_max_bytes allows]\n"
    )


def test_users_file_does_not_use_up_the_projects_limit(project, tmp_path):
    (tmp_path / "AGENTS.md").write_text("u" * 100)
    (project / "AGENTS.md").write_text("a" * 100)
    mine, theirs = text(project, tmp_path, 10).split("\n\n--- project-doc ---\n\n")
    assert mine.startswith("u" * 10 + "\n[") and theirs.startswith("a" * 10 + "\n[")


def test_limit_cuts_between_characters(project):
    (project / "AGENTS.md").write_text("äöü")
    assert text(project, max_bytes=5).startswith("äö\n[")
    assert text(project, max_bytes=6) == "äöü"


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


def test_link_is_followed_and_one_that_leads_nowhere_is_named(project, tmp_path):
    (tmp_path / "shared.md").write_text("shared")
    (project / "AGENTS.md").symlink_to(tmp_path / "shared.md")
    (project / "sub" / "AGENTS.override.md").symlink_to(tmp_path / "none.md")
    (project / "sub" / "AGENTS.md").write_text("sub")
    (project / "sub" / "deep" / "AGENTS.md").symlink_to("AGENTS.md")
    assert text(project / "sub" / "deep") == "\n\n".join(
        [
            "shared",
            f"[{project}/sub/AGENTS.override.md is a link to a file that is not there]\n",
            "sub",
            f"[{project}/sub/deep/AGENTS.md cannot be read: Too many levels of symbolic links]\n",
        ]
    )


def test_a_file_that_is_no_text_is_named_in_place_of_it(project):
    (project / "AGENTS.md").write_bytes("Use tabs.".encode("utf-16"))
    (project / "sub" / "AGENTS.md").write_text("sub")
    named = f"[{project}/AGENTS.md is not text but 20 bytes of something else: left out]\n"
    assert text(project / "sub") == f"{named}\n\nsub"


def test_a_huge_file_is_read_no_further_than_it_counts(project):
    with (project / "AGENTS.md").open("wb") as file:
        file.write(b"first line\n")
        file.truncate(1 << 40)
    found = text(project, max_bytes=11)
    assert found.startswith("[") and "is not text but 1,099,511,627,776 bytes" in found
    (project / "AGENTS.md").write_text("x" * 5_000_000)
    assert text(project).endswith("goes on: 32,768 of 5,000,000 bytes are above (project_doc_max_bytes)]\n")


def test_other_names_count_where_the_usual_ones_are_not(project):
    for name in ("CLAUDE.md", "RULES.md"):
        (project / name).write_text(name)
    (project / "sub" / "CLAUDE.md").write_text("not this")
    (project / "sub" / "AGENTS.md").write_text("sub")
    found = find_agents_md(project / "sub", None, PROJECT_DOC_MAX_BYTES, fallbacks=("RULES.md", "CLAUDE.md"))
    assert found["text"] == "RULES.md\n\nsub"


def test_no_bytes_is_no_rules(project, tmp_path):
    (project / "AGENTS.md").write_text("root")
    (tmp_path / "AGENTS.md").write_text("mine")
    assert find_agents_md(project, tmp_path, 0) == {}


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that nobody can read, root included")
def test_unreadable_file_is_named_in_place_of_its_text(project):
    (project / "AGENTS.md").symlink_to("/proc/self/mem")
    (project / "sub" / "AGENTS.md").write_text("sub")
    assert text(project / "sub") == f"[{project}/AGENTS.md cannot be read: Input/output error]\n\n\nsub"
