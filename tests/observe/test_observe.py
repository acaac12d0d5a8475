"""Observe: one look at the surroundings: permissions, environment, AGENTS.md, as the model is told of them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from refold.core.world import World, messages, render
from refold.observe import Surroundings, observe
from refold.observe.environment import local_timezone

NOW = datetime(2026, 3, 8, 0, 30, tzinfo=timezone(timedelta(hours=8)))


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")


def look(cwd: Path, **fields: Any) -> World:
    return observe(Surroundings(cwd=str(cwd), **fields), NOW)


def told(world: World, baseline: dict[str, Any] | None = None) -> list[tuple[str, list[str]]]:
    """What the model is told: (role, texts) of each message."""
    ids = ["msg_1", "msg_2", "msg_3", "msg_4"]
    found = messages(render(world, baseline), ids, None)
    return [(item["role"], [part["text"] for part in item["content"]]) for item in found]


def test_whole_world_is_permissions_then_rules_and_environment(tmp_path):
    (tmp_path / "AGENTS.md").write_text("Be brief.")
    (developer, permissions), (user, context) = told(look(tmp_path))
    assert (developer, user) == ("developer", "user")
    assert permissions[0].startswith("<permissions instructions>")
    rules, environment = context
    assert rules == (f"# AGENTS.md instructions for {tmp_path}\n\n<INSTRUCTIONS>\nBe brief.\n</INSTRUCTIONS>")
    for line in (
        f"<cwd>{tmp_path}</cwd>",
        "<shell>bash</shell>",
        "<current_date>2026-03-08</current_date>",  # local: it is still the 7th in UTC
        "<timezone>Asia/Shanghai</timezone>",
    ):
        assert line in environment


def test_nothing_is_told_twice(tmp_path):
    (tmp_path / "AGENTS.md").write_text("Be brief.")
    assert told(look(tmp_path), look(tmp_path).state) == []


def test_only_what_changed_is_told(tmp_path):
    (tmp_path / "AGENTS.md").write_text("Be brief.")
    before = look(tmp_path)
    (tmp_path / "AGENTS.md").write_text("Be thorough.")
    [(role, [text])] = told(look(tmp_path), before.state)
    assert role == "user"
    assert "replace all previously provided AGENTS.md instructions" in text and "Be thorough." in text
    (tmp_path / "AGENTS.md").unlink()
    [(role, [text])] = told(look(tmp_path), look(tmp_path).state | {"agents_md": before.state["agents_md"]})
    assert "no longer apply" in text


def test_users_rules_come_from_refolds_home(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "AGENTS.md").write_text("Mine.")
    [_, (_, [rules, _])] = told(look(tmp_path, home=str(tmp_path / "home")))
    assert "Mine." in rules


def test_limit_of_project_rules_is_kept(tmp_path):
    (tmp_path / "AGENTS.md").write_text("abcdefgh")
    [_, (_, [rules, _])] = told(look(tmp_path, project_doc_max_bytes=3))
    assert "\nabc\n" in rules


@pytest.mark.parametrize("mode", ["read-only", "workspace-write", "danger-full-access"])
def test_permissions_follow_the_sandbox(tmp_path, mode):
    [(_, [text]), _] = told(look(tmp_path, sandbox_mode=mode))
    assert mode in text


def test_names_are_escaped(tmp_path):
    folder = tmp_path / "<a> & b"
    folder.mkdir()
    [_, (_, [environment])] = told(look(folder))
    assert "&lt;a&gt; &amp; b</cwd>" in environment


def test_folder_that_is_gone_can_still_be_looked_at(tmp_path):
    [_, (_, [environment])] = told(look(tmp_path / "gone"))
    assert str(tmp_path / "gone") in environment


# --- the time zone --------------------------------------------------------------------------------------------------


def zone_link(folder: Path, name: str) -> Path:
    """An /etc/localtime that means a zone, in a system of its own."""
    target = folder / "share" / "zoneinfo" / name
    target.parent.mkdir(parents=True)
    target.write_bytes(b"TZif2")
    link = folder / "localtime"
    link.symlink_to(target)
    return link


@pytest.mark.parametrize(
    ("named", "zone"),
    [
        ("America/New_York", "America/New_York"),
        (":Europe/Berlin", "Europe/Berlin"),
        ("America/Argentina/Ushuaia", "America/Argentina/Ushuaia"),
        ("/usr/share/zoneinfo/Asia/Tokyo", "Asia/Tokyo"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "Pacific/Apia"),
        ("../../etc/passwd", "Pacific/Apia"),
        ("EST5EDT4", "Pacific/Apia"),
        ("", "Pacific/Apia"),
        (None, "Pacific/Apia"),
    ],
)
def test_zone_is_the_one_that_is_set_else_the_systems(tmp_path, named, zone):
    environ = {} if named is None else {"TZ": named}
    assert local_timezone(environ, zone_link(tmp_path, "Pacific/Apia")) == zone


def test_zone_is_utc_where_the_system_does_not_tell(tmp_path):
    (tmp_path / "copied").write_bytes(b"TZif2")
    assert local_timezone({}, tmp_path / "copied") == "Etc/UTC"
    assert local_timezone({}, tmp_path / "missing") == "Etc/UTC"
