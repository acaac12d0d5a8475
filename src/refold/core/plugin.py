"""Plugin: a folder with a manifest that brings skills and MCP servers: what it says, what a person sets of it.

The manifest is the real program's, `.codex-plugin/plugin.json`; paths in it begin with `./` and stay inside the folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from refold.core.jsonio import JSON, is_list, is_object
from refold.core.mcp import McpServer, check_server
from refold.core.skill import Skill
from refold.errors import ConfigError

MANIFEST = ".codex-plugin/plugin.json"
SKILLS = "./skills"  # where the manifest names none
SERVERS = "./.mcp.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_ROOT = re.compile(r"\$\{(?:CODEX_|CLAUDE_)?PLUGIN_ROOT\}")  # how a server's settings name the plugin's folder
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class PluginSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[plugins.NAME]`: where a plugin is (absolute or `~/…`; None: one of those that are found), and if it is used."""

    path: str | None = None
    enabled: bool = True


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin in use. `trusted`: the settings name it, so its servers are started."""

    name: str
    description: str  # one line
    folder: str  # absolute
    skills: tuple[Skill, ...] = ()
    servers: dict[str, McpServer] = {}
    trusted: bool = False


class Manifest(msgspec.Struct, frozen=True):
    """What a manifest says: a name, a description in one line, folders of skills, servers (a file, or their tables)."""

    name: str
    description: str
    skills: tuple[str, ...]
    servers: str | JSON


def read_manifest(value: Any, folder: str) -> Manifest | str:
    """The manifest of the plugin in `folder` (absolute), or why it is none; paths come back absolute."""
    if not is_object(value):
        return "its manifest is no JSON object"
    name = value.get("name") or folder.rpartition("/")[2]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"its name {str(name)[:80]!r} is not made of at most 64 letters, digits, _ and -"
    text: Any = value.get("description")
    about = " ".join(_CONTROL.sub(" ", text).split()) if isinstance(text, str) else ""
    given: Any = value.get("skills") or SKILLS
    skills: list[str] = []
    for path in given if is_list(given) else [given]:
        inside = _inside(folder, path)
        if inside is None:
            return f"its skills are at {path!r}, which is no path in it (such as ./skills)"
        skills.append(inside)
    servers: Any = value.get("mcpServers") or SERVERS
    found = servers if is_object(servers) else _inside(folder, servers)
    if found is None:
        return f"its mcpServers are at {servers!r}, which is no path in it (such as ./.mcp.json)"
    return Manifest(name, about, tuple(skills), found)


def _inside(folder: str, path: Any) -> str | None:
    """The path of something in a folder, absolute; None when it leads out of it."""
    if not isinstance(path, str) or path.startswith(("/", "~")) or "\0" in path:
        return None
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return None if ".." in parts else "/".join((folder, *parts))


def read_servers(value: Any, plugin: str, folder: str) -> tuple[dict[str, McpServer], list[str]]:
    """The servers in a plugin's `.mcp.json`, and what cannot be used of it, a line each.

    They start in the plugin's folder, and `${PLUGIN_ROOT}` in their settings is that folder.
    """
    named: Any = value.get("mcpServers", value.get("mcp_servers", value)) if is_object(value) else None
    if not is_object(named):
        return {}, ["its MCP servers are no table"]
    servers: dict[str, McpServer] = {}
    faults: list[str] = []
    for name, table in named.items():
        try:
            servers[name] = _server(f"plugins.{plugin}.{name}", table, folder)
        except (ConfigError, msgspec.ValidationError) as error:
            faults.append(f"its MCP server {name} cannot be used: {error}")
    return servers, faults


def _server(key: str, table: Any, folder: str) -> McpServer:
    given: Any = _placed(table, folder)
    if not is_object(given):
        raise ConfigError(key, "must be a table")
    renamed = {"http_headers" if name == "headers" else name: inner for name, inner in given.items()}
    server = msgspec.convert({k: v for k, v in renamed.items() if k in McpServer.__struct_fields__}, McpServer)
    check_server(key, server, "the plugin's settings")
    if server.url:
        return server
    command, cwd = server.command or "", server.cwd or "."
    command = _inside(folder, command) if command.startswith(("./", "../")) else command
    cwd = cwd if cwd.startswith("/") else _inside(folder, cwd)
    if command is None or cwd is None:
        raise ConfigError(key, "its command or cwd leads out of the plugin")
    # A plugin does not decide that a session cannot begin.
    return msgspec.structs.replace(server, command=command, cwd=cwd, required=False)


def _placed(value: Any, folder: str) -> Any:
    if isinstance(value, str):
        return _ROOT.sub(lambda _: folder, value)
    if is_object(value):
        return {name: _placed(inner, folder) for name, inner in value.items()}
    return [_placed(inner, folder) for inner in value] if is_list(value) else value


def setting_of(name: str, settings: Mapping[str, PluginSettings]) -> PluginSettings | None:
    """What is set of a plugin; the real program's `name@marketplace` counts, too."""
    fitting: Sequence[PluginSettings] = [one for key, one in settings.items() if key.partition("@")[0] == name]
    return fitting[-1] if fitting else None
