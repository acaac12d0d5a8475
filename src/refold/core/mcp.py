"""MCP: what is set for each tool server, and what its tools and results are to a model.

Everything here is pure; `tools/mcp` talks to the servers. Tools and results come in as the protocol's JSON objects.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from refold.core.items import Part
from refold.core.jsonio import JSON, dump, is_list, is_object
from refold.errors import ConfigError

LONGEST_NAME = 64  # characters of a tool's name that every provider takes
HASH_DIGITS = 8  # hex digits that tell two tools apart whose names would be one
MOST_PAGES = 100  # of one list of tools: a server that always has another page must not hold a session

# What a server's process inherits: enough to find programs and to know its user and language, and no key of anybody's.
INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")

_REFUSED = re.compile(r"[^A-Za-z0-9_-]")
_OF_A_PROCESS = ("args", "env", "env_vars", "cwd")
_OF_AN_ADDRESS = ("bearer_token_env_var", "http_headers", "env_http_headers")


# --- settings ----------------------------------------------------------------------------------------------------


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """`[mcp_servers.NAME]`: how one server is reached, in the real program's key names; times are seconds.

    Either `command` (a process, talked to over its pipes) or `url` (streamable HTTP) is set.
    """

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    env_vars: tuple[str, ...] = ()  # names of variables that it inherits besides INHERITED
    cwd: str | None = None  # relative to the session's folder
    url: str | None = None
    bearer_token_env_var: str | None = None  # the variable that holds the token
    http_headers: dict[str, str] = {}
    env_http_headers: dict[str, str] = {}  # header name -> environment variable
    startup_timeout_sec: float = 10.0
    tool_timeout_sec: float = 60.0
    enabled: bool = True
    required: bool = False  # a session does not begin without it
    enabled_tools: tuple[str, ...] | None = None  # None: all
    disabled_tools: tuple[str, ...] = ()
    app: bool = False  # a service that messages name, as `[$name](app://name)`
    description: str = ""  # of an app: what it is for, in a line

    def offers(self, tool: str) -> bool:
        """Whether the model gets the tool of this name."""
        return tool not in self.disabled_tools and (self.enabled_tools is None or tool in self.enabled_tools)


def check_server(key: str, server: McpServer, where: str) -> None:
    """Raises ConfigError for what no server can be started from; `key` is the table's name."""
    if bool(server.command) == bool(server.url):
        both = "has a command and a url: which of them?" if server.url else "needs a command or a url"
        raise ConfigError(key, f"{both} ({where})")
    if server.url and not re.match(r"(?i)https?://[^/\s]", server.url):
        raise ConfigError(f"{key}.url", f"must be an address like https://host/mcp, not {server.url!r} ({where})")
    other, one = (_OF_A_PROCESS, "url") if server.url else (_OF_AN_ADDRESS, "command")
    for name in other:
        if getattr(server, name):
            raise ConfigError(f"{key}.{name}", f"means nothing beside {one}; remove one of them ({where})")
    for name in ("startup_timeout_sec", "tool_timeout_sec"):
        if not 0 < getattr(server, name) < float("inf"):
            raise ConfigError(f"{key}.{name}", f"must be a number of seconds above 0 ({where})")


def server_environment(server: McpServer, environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a server's process, made from ours."""
    inherited = {name: environ[name] for name in (*INHERITED, *server.env_vars) if name in environ}
    return {**inherited, **server.env}


def server_headers(key: str, server: McpServer, environ: Mapping[str, str]) -> dict[str, str]:
    """The headers of every request to a server. Raises ConfigError when the variable of its token is not set."""
    headers = dict(server.http_headers)
    headers.update((name, environ[var].strip()) for name, var in server.env_http_headers.items() if environ.get(var))
    if server.bearer_token_env_var:
        token = environ.get(server.bearer_token_env_var, "").strip()
        if not token:
            why = f"names {server.bearer_token_env_var}, which is not set; set it to the server's token"
            raise ConfigError(f"{key}.bearer_token_env_var", why)
        headers["Authorization"] = f"Bearer {token}"
    return headers


# --- tools ---------------------------------------------------------------------------------------------------------


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its server lists it. The hints are None where the server says nothing."""

    name: str
    description: str = ""
    schema: JSON = {}  # of its arguments
    read_only: bool | None = None
    destructive: bool | None = None
    open_world: bool | None = None

    @property
    def parallel(self) -> bool:
        """Whether it may run beside other calls: unless it says that it destroys."""
        return self.read_only is True or self.destructive is not True

    @property
    def needs_approval(self) -> bool:
        """Whether a person is asked first: unless it only reads, or only adds and keeps to its own data."""
        if self.destructive is True:
            return True
        return self.read_only is not True and not (self.destructive is False and self.open_world is False)


def offered(tool: JSON) -> Offered:
    """One entry of a `tools/list` result."""
    hints: Any = tool.get("annotations")
    hints = hints if is_object(hints) else {}
    schema: Any = tool.get("inputSchema")
    return Offered(
        name=str(tool["name"]),
        description=tool.get("description") or tool.get("title") or hints.get("title") or "",
        schema=schema if is_object(schema) else {},
        read_only=hints.get("readOnlyHint"),
        destructive=hints.get("destructiveHint"),
        open_world=hints.get("openWorldHint"),
    )


def function_spec(name: str, tool: Offered) -> JSON:
    """The tool's entry in a request. Its schema stays as it is, but for what providers insist on: an object with
    properties."""
    properties = tool.schema.get("properties")
    parameters = {**tool.schema, "type": "object", "properties": properties if is_object(properties) else {}}
    return {
        "type": "function",
        "name": name,
        "description": tool.description,
        "strict": False,
        "parameters": parameters,
    }


def tool_names(tools: Sequence[tuple[str, str]], taken: Collection[str] = ()) -> list[str]:
    """The name of each (server, tool) for the model: `mcp__SERVER__TOOL`.

    Characters that providers refuse become `_`. What is then too long, or is another tool's name too, ends in a hash of
    both names instead: the same in every session, wherever it stands in the list.
    """
    plain = [_REFUSED.sub("_", f"mcp__{server}__{tool}") for server, tool in tools]
    uses = Counter(plain) + Counter(set(taken))
    return [
        name if uses[name] == 1 and len(name) <= LONGEST_NAME else _hashed(name, server, tool)
        for name, (server, tool) in zip(plain, tools, strict=True)
    ]


def _hashed(name: str, server: str, tool: str) -> str:
    digest = hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "surrogatepass")).hexdigest()[:HASH_DIGITS]
    return f"{name[: LONGEST_NAME - HASH_DIGITS - 1]}_{digest}"


# --- results -------------------------------------------------------------------------------------------------------


def output_of(result: JSON) -> str | list[Part]:
    """What a `tools/call` result is to the model: text where there is only text, else content parts.

    Structured content counts where there is no text: servers repeat it as text for those who do not know it.
    """
    content: Any = result.get("content")
    parts = [_part(block) for block in content if is_object(block)] if is_list(content) else []
    if "structuredContent" in result and not any(part["type"] == "input_text" for part in parts):
        parts.insert(0, _text(dump(result["structuredContent"]).decode()))
    if all(part["type"] == "input_text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def progress_text(progress: float, total: float | None, message: str | None) -> str:
    """One progress notification for whoever watches: `3 of 10: copying`."""
    count = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
    return f"{count}: {message}" if message else count


def _text(text: str) -> Part:
    return {"type": "input_text", "text": text}


def _part(block: JSON) -> Part:
    match block:
        case {"type": "text", "text": str(text)}:
            return _text(text)
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return _media(kind, str(block.get("mimeType") or f"{kind}/*"), data)
        case {"type": "resource_link"}:
            return _text(_link(block))
        case {"type": "resource", "resource": {"text": str(text)} as resource}:
            return _text(f"{resource.get('uri')}:\n{text}")
        case {"type": "resource", "resource": {"blob": str(data)} as resource}:
            return _blob(resource, data)
        case _:
            return _text(dump(block).decode())


def _media(kind: str, mime: str, data: str) -> Part:
    url = f"data:{mime};base64,{data}"
    return {"type": "input_image", "image_url": url} if kind == "image" else {"type": "input_audio", "audio_url": url}


def _link(block: JSON) -> str:
    title = block.get("title") or block.get("name") or "resource"
    kind = f" ({block['mimeType']})" if block.get("mimeType") else ""
    about = f": {block['description']}" if block.get("description") else ""
    return f"{title} <{block.get('uri')}>{kind}{about}"


def _blob(resource: JSON, data: str) -> Part:
    """An embedded file: an image or a sound as one, all else by name and size."""
    mime = str(resource.get("mimeType") or "application/octet-stream")
    kind = mime.partition("/")[0]
    if kind in ("image", "audio"):
        return _media(kind, mime, data)
    size = len(data) * 3 // 4 - data[-2:].count("=")
    return _text(f"{resource.get('uri')}: {size:,} bytes of {mime}, not shown")
