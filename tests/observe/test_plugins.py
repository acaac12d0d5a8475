"""Plugins are found where the settings or a home say so; what cannot be used is said, and nothing raises."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from refold.core.plugin import PluginSettings
from refold.observe.plugins import Plugins, find_plugins
from refold.observe.watch import Watch

ON, OFF = PluginSettings(), PluginSettings(enabled=False)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "plugins").mkdir()
    return tmp_path / "plugins"


def plugin(
    folder: Path, name: str | None = None, *, skills: tuple[str, ...] = (), servers: Any = None, **more: Any
) -> Path:
    (folder / ".codex-plugin").mkdir(parents=True)
    manifest = {"name": name or folder.name, "description": "For tests.", **more}
    (folder / ".codex-plugin" / "plugin.json").write_text(json.dumps(manifest))
    for skill in skills:
        (folder / "skills" / skill).mkdir(parents=True)
        (folder / "skills" / skill / "SKILL.md").write_text(f"---\nname: {skill}\ndescription: Does {skill}.\n---\n")
    if servers is not None:
        (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return folder


def find(*tops: Path, **settings: PluginSettings) -> Plugins:
    return find_plugins(settings, list(map(str, tops)), Watch())


def names(found: Plugins) -> list[str]:
    return [one.name for one in found.plugins]


def test_a_plugin_in_a_home_gives_its_skills_under_its_name(top: Path) -> None:
    folder = plugin(top / "kit", skills=("cut", "glue"))
    found = find(top)
    assert names(found) == ["kit"] and found.notices == ()
    assert [(one.name, one.description) for one in found.skills] == [
        ("kit:cut", "Does cut."),
        ("kit:glue", "Does glue."),
    ]
    assert found.skills[0].path == f"{folder}/skills/cut/SKILL.md"


def test_servers_are_started_only_where_the_settings_name_the_plugin(top: Path) -> None:
    plugin(top / "kit", servers={"s": {"command": "x"}})
    [found] = find(top).plugins
    assert not found.trusted and list(found.servers) == ["s"]
    [notice] = find(top).notices
    assert notice == "plugin kit: its MCP servers (s) are not started; [plugins.kit] enabled = true does"
    named = find(top, kit=ON)
    assert named.plugins[0].trusted and named.notices == ()


def test_a_path_in_the_settings_names_one_and_comes_first(tmp_path: Path, top: Path) -> None:
    there = plugin(tmp_path / "elsewhere", "kit", servers={"s": {"command": "x"}})
    plugin(top / "kit", servers={"evil": {"command": "x"}})
    found = find(top, mine=PluginSettings(path=str(there)))
    assert [(one.folder, one.trusted) for one in found.plugins] == [(str(there), True)]
    assert found.notices == (f"plugin {top}/kit is left out: {there} has the same name, kit",)


def test_a_plugin_is_not_trusted_for_its_name_where_the_settings_name_another_folder(tmp_path: Path, top: Path) -> None:
    plugin(top / "kit", servers={"s": {"command": "x"}})
    [found] = find(top, kit=PluginSettings(path=str(tmp_path / "missing"))).plugins
    assert not found.trusted


def test_what_is_turned_off_is_left_out(top: Path) -> None:
    folder = plugin(top / "kit", skills=("cut",))
    assert find(top, kit=OFF) == Plugins()
    assert find(kit=PluginSettings(path=str(folder), enabled=False)) == Plugins()


def test_the_newest_version_that_the_real_program_installed_is_used_when_it_is_named(top: Path) -> None:
    for version in ("9.0.0", "10.1.0", "10.0.0"):
        plugin(top / "cache" / "market" / "kit" / version, "kit")
    assert find(top) == Plugins(), "nobody named it"
    found = find_plugins({"kit@market": ON}, [str(top)], Watch())
    assert [one.folder for one in found.plugins] == [f"{top}/cache/market/kit/10.1.0"]
    off = find_plugins({"kit@market": OFF}, [str(top)], Watch())
    assert off == Plugins()


def test_what_is_not_there_is_said(top: Path) -> None:
    missing = top.parent / "missing"
    assert find(top, kit=PluginSettings(path=str(missing))).notices == (
        f"plugin kit: there is no .codex-plugin/plugin.json in {missing}",
    )
    assert find(top, kit=ON).notices == (f"plugin kit is not in {top}; set plugins.kit.path",)
    assert find(top / "no such folder") == Plugins()


def test_what_cannot_be_read_is_said_and_the_others_are_used(top: Path) -> None:
    plugin(top / "good", skills=("cut",))
    (plugin(top / "json") / ".codex-plugin" / "plugin.json").write_text("{")
    plugin(top / "out", skills=(), **{"mcpServers": "../x"})
    (plugin(top / "servers") / ".mcp.json").write_text("no")
    (plugin(top / "head", skills=("bad",)) / "skills" / "bad" / "SKILL.md").write_text("no head")
    os.mkfifo(plugin(top / "pipe") / ".mcp.json")
    found = find(top)
    assert names(found) == ["good", "head", "pipe", "servers"]
    assert [one.name for one in found.skills] == ["good:cut"]
    for part in ("plugin.json", "out is left out", "servers: ", "bad/SKILL.md is left out", "it is no file"):
        assert any(part in notice or part.partition(".")[0] in notice for notice in found.notices), part
    assert len(found.notices) == 5


def test_looking_again_sees_what_changed(top: Path) -> None:
    watch = Watch()
    folder = plugin(top / "kit", skills=("cut",))
    first = find_plugins({}, [str(top)], watch)
    assert find_plugins({}, [str(top)], watch) == first
    (folder / "skills" / "glue").mkdir()
    (folder / "skills" / "glue" / "SKILL.md").write_text("---\ndescription: Glues.\n---\n")
    assert [one.name for one in find_plugins({}, [str(top)], watch).skills] == ["kit:cut", "kit:glue"]
