"""Plugins: which folders with a manifest there are, where the settings or a home say so, and what they bring.

Rule 1: a project's own folders are not looked into: a plugin of a project is used where the settings name its path.
Rule 2: looking again costs stats only where nothing changed. Rule 3: what cannot be used becomes a notice.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from refold.core.jsonio import load
from refold.core.mcp import McpServer
from refold.core.plugin import MANIFEST, Manifest, Plugin, PluginSettings, read_manifest, read_servers, setting_of
from refold.core.skill import Skill
from refold.core.skill_head import read_skill
from refold.observe.watch import Unread, Watch

HEAD_BYTES = 64 * 1024  # of a SKILL.md
FILE_BYTES = 1024 * 1024  # of a manifest or a file with servers: no honest one comes near
MOST_NAMES = 1_000  # of the names in a folder so many are looked at
CACHE = "cache"  # where the real program keeps what it installed: cache/MARKETPLACE/NAME/VERSION


class Plugins(msgspec.Struct, frozen=True):
    """The plugins in use, each name once, and what a person should know of the others."""

    plugins: tuple[Plugin, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def skills(self) -> tuple[Skill, ...]:
        return tuple(skill for plugin in self.plugins for skill in plugin.skills)


def find_plugins(settings: Mapping[str, PluginSettings], tops: Sequence[str], watch: Watch) -> Plugins:
    """Look at the disk once. It does not raise: what cannot be used is told. `tops`: folders of plugins."""
    finding = _Finding(settings, watch)
    for name, one in settings.items():
        if not one.enabled:
            continue
        folder = os.path.expanduser(one.path) if one.path else finding.installed(name, tops)  # noqa: PTH111
        if one.path and not finding.take(folder, trusted=True):
            finding.say(f"plugin {name}: there is no {MANIFEST} in {folder}")
        elif folder and not one.path:
            finding.take(folder, trusted=True)
    for top in tops:
        for name in finding.names_in(top):
            finding.take(f"{top}/{name}")
    there = {plugin.name for plugin in finding.plugins.values()}
    for name, one in settings.items():
        if one.enabled and one.path is None and name.partition("@")[0] not in there:
            finding.say(f"plugin {name} is not in {' or '.join(tops)}; set plugins.{name}.path")
    return Plugins(tuple(finding.plugins.values()), tuple(dict.fromkeys(finding.notices)))


class _Finding:
    """Mutable: what one look at the disk has met so far."""

    def __init__(self, settings: Mapping[str, PluginSettings], watch: Watch) -> None:
        self._settings, self._watch = settings, watch
        self.plugins: dict[str, Plugin] = {}
        self.notices: list[str] = []

    def say(self, text: str) -> None:
        self.notices.append("".join(mark if mark.isprintable() else "\ufffd" for mark in text))

    def take(self, folder: str, *, trusted: bool = False) -> bool:
        """Take the plugin in a folder; whether there is a manifest. `trusted`: the settings named this folder."""
        folder = folder.rstrip("/")
        manifest = self._file(f"{folder}/{MANIFEST}", "manifest", lambda value: read_manifest(value, folder))
        if manifest is None:
            return False
        if isinstance(manifest, str):
            self.say(f"plugin {folder} is left out: {manifest}")
            return True
        setting = setting_of(manifest.name, self._settings)
        if setting is not None and not setting.enabled:
            return True
        trusted = trusted or (setting is not None and setting.path is None)
        nearer = self.plugins.get(manifest.name)
        if nearer is None:
            self.plugins[manifest.name] = self._plugin(manifest, folder, trusted)
        elif nearer.folder != folder:
            self.say(f"plugin {folder} is left out: {nearer.folder} has the same name, {manifest.name}")
        return True

    def _plugin(self, manifest: Manifest, folder: str, trusted: bool) -> Plugin:
        servers = self._servers(manifest, folder)
        if servers and not trusted:
            names, table = ", ".join(servers), f"[plugins.{manifest.name}]"
            self.say(f"plugin {manifest.name}: its MCP servers ({names}) are not started; {table} enabled = true does")
        return Plugin(
            name=manifest.name,
            description=manifest.description,
            folder=folder,
            skills=tuple(self._skills(manifest)),
            servers=servers,
            trusted=trusted,
        )

    def installed(self, name: str, tops: Sequence[str]) -> str:
        """Where the real program has installed `name@marketplace`: its newest version; "" where it has not."""
        plugin, _, market = name.partition("@")
        for top in tops if market and "/" not in name else ():
            versions = self.names_in(f"{top}/{CACHE}/{market}/{plugin}")
            if versions:
                return f"{top}/{CACHE}/{market}/{plugin}/{max(versions, key=_by_number)}"
        return ""

    def names_in(self, folder: str) -> tuple[str, ...]:
        """The names in a folder, sorted, without hidden ones; none where there is no such folder."""
        names = self._seen(folder, "plugins", lambda found: _names(folder) if stat.S_ISDIR(found.st_mode) else ())
        if isinstance(names, str):
            self.say(f"plugins: {folder} cannot be read: {names}")
            return ()
        return names or ()

    def _skills(self, manifest: Manifest) -> Iterator[Skill]:
        names: set[str] = set()
        for folder in manifest.skills:
            for inner in self.names_in(folder):
                path = f"{folder}/{inner}/SKILL.md"
                skill = self._seen(path, "skill", lambda found, path=path: _skill(path, found))
                if isinstance(skill, str):
                    self.say(f"skill {path} is left out: {skill}")
                elif skill is not None and skill.name not in names:
                    names.add(skill.name)
                    yield Skill(f"{manifest.name}:{skill.name}", skill.description, skill.path)

    def _servers(self, manifest: Manifest, folder: str) -> dict[str, McpServer]:
        given = manifest.servers
        if isinstance(given, str):
            found = self._file(given, "servers", lambda value: read_servers(value, manifest.name, folder))
            if isinstance(found, str):
                self.say(f"plugin {manifest.name}: {given}: {found}")
        else:
            found = read_servers(given, manifest.name, folder)
        if found is None or isinstance(found, str):
            return {}
        servers, faults = found
        for fault in faults:
            self.say(f"plugin {manifest.name}: {fault}")
        return servers

    def _file(self, path: str, kind: str, read: Any) -> Any:
        """What `read` makes of a JSON file, or why it cannot be read; None where there is no file."""
        return self._seen(path, kind, lambda found: _read_json(path, found, read))

    def _seen(self, path: str, kind: str, make: Any) -> Any:
        try:
            return self._watch.seen(path, ("plugin", kind), make)
        except OSError as error:
            return Unread(error.strerror or "it cannot be looked at")


def _names(folder: str) -> tuple[str, ...] | str:
    try:
        return tuple(sorted(name for name in os.listdir(folder) if name[0] != "." and name != CACHE)[:MOST_NAMES])  # noqa: PTH208
    except OSError as error:
        return Unread(error.strerror or "it is no folder")


def _by_number(version: str) -> tuple[list[int], str]:
    return [int(part) for part in version.split(".") if part.isdecimal()], version


def _bytes(path: str, found: os.stat_result, most: int) -> bytes | str:
    if not stat.S_ISREG(found.st_mode):
        return "it is no file"
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
            return file.read(most)
    except OSError as error:
        return Unread(f"it cannot be read: {error.strerror}")


def _read_json(path: str, found: os.stat_result, read: Any) -> Any:
    raw = _bytes(path, found, FILE_BYTES)
    if isinstance(raw, str):
        return raw
    try:
        return read(load(raw)[0])
    except ValueError as error:
        return f"it is not JSON: {error}"


def _skill(path: str, found: os.stat_result) -> Skill | str | None:
    raw = _bytes(path, found, HEAD_BYTES)
    if isinstance(raw, str):
        return raw
    return read_skill(raw.decode("utf-8", "replace"), path, path.split("/")[-2])
