"""GatewaySettings: what a gateway is told, without any secret; Secrets: keys and tokens, read from where it says."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from refold.core.chat_completions_settings import ChatSettings
from refold.core.profile import Profile, Provider
from refold.errors import ConfigError

if TYPE_CHECKING:
    from refold.server.seal import KeyRing

Method: TypeAlias = Literal["model", "flattened", "outline"]

KEYS_VARIABLE = "REFOLD_GATEWAY_KEYS"
TOKENS_VARIABLE = "REFOLD_GATEWAY_TOKENS"
OTHERS = 0o077  # of a file's mode
SHORTEST_TOKEN = 16  # characters: a bearer token for an open address must not be guessed
ALL = "all"  # in `accepts`
# The words that `accepts` has of its own; any other is the type of an item or a tool.
ACCEPTED = ("custom", "local_shell", "tool_search", "namespace", "encrypted_reasoning", "agent_message", "metadata")
ACCEPTED += ("compaction", ALL)
NEARLY = 0.8  # how alike a word and a mistyped one are, of 1


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the upstream is and what it takes, who may ask, how it compacts, and the limits.

    It names files and environment variables of secrets, never one itself: it may be printed and handed to workers.
    """

    upstream: str  # its base URL, with /v1 where it has one
    upstream_api: Literal["responses", "chat"] = "responses"
    key_env: str | None = None  # the variable with the upstream's key; None: see `Secrets.passes_bearer`
    query_params: dict[str, str] = {}  # of each request's address
    http_headers: dict[str, str] = {}  # of each request; no secret is here
    env_http_headers: dict[str, str] = {}  # the same by the variables that hold them
    model_map: dict[str, str] = {}  # what clients ask for → what the upstream is asked for; "*": everything else
    chat: ChatSettings = ChatSettings()  # of a Chat Completions upstream
    context_window: int | None = None  # tokens of the upstream's model, where errors do not tell it

    compaction: Method = "model"
    outline_when_it_fails: bool = True  # a model that writes no summary does not cost a client its compaction
    accepts: tuple[str, ...] = ()  # what a Responses upstream takes beyond messages and functions; see plain.py
    unknown_items: Literal["drop", "pass", "refuse"] = "drop"
    developer_role: Literal["developer", "system", "user"] = "developer"
    leave_out: tuple[str, ...] = ()  # keys of the body that the upstream does not take

    host: str = "127.0.0.1"
    port: int = 8484
    workers: int = 1
    keys_file: str | None = None  # None: the variable REFOLD_GATEWAY_KEYS
    makes_keys: bool = False  # whether a key file that is not there is made
    tokens_file: str | None = None  # None: the variable REFOLD_GATEWAY_TOKENS
    store: str | None = None  # the SQLite file of responses; None: in memory, gone at the end
    retention_days: float = 30.0

    max_body_bytes: int = 64 << 20
    max_requests: int = 2_000  # at once, of a worker; more are answered with 503
    max_requests_per_tenant: int = 1_000  # at once, of a worker; more are answered with 429
    body_seconds: float = 60.0  # within which a request must have come
    idle_seconds: float = 300.0  # of silence of the upstream, and of a client that takes nothing
    shutdown_seconds: float = 30.0  # that open answers may still take
    log_requests: bool = False  # a line for each: method, path, status, time; never what it holds

    def provider(self) -> Provider:
        """The upstream, as refold.model knows providers. Keys are added to each request, not here."""
        return Provider(
            id="upstream",
            name="upstream",
            base_url=self.upstream,
            env_key=None,
            wire_api=self.upstream_api,
            chat=self.chat,
            query_params=self.query_params,
            http_headers=self.http_headers,
            stream_idle_timeout_ms=round(self.idle_seconds * 1000),
        )

    def profile(self, model: str) -> Profile:
        """What is known about a model of the upstream."""
        return Profile(slug=model, context_window=self.context_window, known=False)

    def model_for(self, asked: str) -> str:
        """What the upstream calls a model that a client asks for."""
        return self.model_map.get(asked) or self.model_map.get("*") or asked

    @property
    def takes_all(self) -> bool:
        return ALL in self.accepts


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that seal, the tokens that may ask (SHA-256 → tenant), the upstream's key and headers. Never shown."""

    keys: KeyRing
    tenants: dict[bytes, str] = {}
    upstream_key: str | None = None
    upstream_headers: dict[str, str] = {}  # by their names in lower case

    def __repr__(self) -> str:
        return f"Secrets({self.keys!r}, {len(self.tenants)} tokens)"

    @property
    def passes_bearer(self) -> bool:
        """Whether the upstream is sent the client's own bearer: only where that is not a token of the gateway's,
        and nothing else says who asks."""
        return self.upstream_key is None and not self.tenants and not self.upstream_headers


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine are meant by a host's name."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def checked(settings: GatewaySettings) -> GatewaySettings:
    """The settings, when they can be. Raises ConfigError that says what to do."""
    from refold.model.client import endpoint

    try:
        url = endpoint(settings.provider())
    except ConfigError as error:
        raise ConfigError("upstream" if error.key == "base_url" else error.key, error.why) from None
    _check_accepts(settings.accepts)
    if url.userinfo:
        raise ConfigError("upstream", "holds a password, which everybody on this machine could read: use --key-env")
    for name in (
        "max_body_bytes",
        "max_requests",
        "max_requests_per_tenant",
        "body_seconds",
        "idle_seconds",
        "workers",
    ):
        if getattr(settings, name) <= 0:
            raise ConfigError(name, f"must be more than 0, not {getattr(settings, name)}")
    if not 0 <= settings.port < 65_536:
        raise ConfigError("port", f"must be between 0 and 65535, not {settings.port}")
    if settings.workers > 1 and settings.store is None:
        raise ConfigError("store", "several workers need a file that they share")
    if settings.workers > 1 and settings.port == 0:
        raise ConfigError("port", "several workers need a port that is told, not a free one")
    return settings


def _check_accepts(words: tuple[str, ...]) -> None:
    """Raises ConfigError for a word that says nothing. The types of items and tools are many, and new ones come: so
    only one that is nearly another word, or says an item where its tool's name is known, is refused."""
    from difflib import get_close_matches

    from refold.server.plain import NAME_OF

    for word in words:
        near = NAME_OF.get(word) or next(iter(get_close_matches(word.lower(), ACCEPTED, 1, NEARLY)), word)
        if word not in ACCEPTED and near != word:
            known = ", ".join(ACCEPTED)
            raise ConfigError("accepts", f"{word!r}: do you mean {near!r}? It takes {known}, and other items' types")


def read_secrets(settings: GatewaySettings, environ: Mapping[str, str]) -> Secrets:
    """Keys, tokens and the upstream's key from the files and variables that the settings name.

    Raises ConfigError, also where anybody could ask from elsewhere without a token.
    """
    from refold.server.seal import key_file, read_keys

    if settings.keys_file is not None:
        keys = key_file(Path(settings.keys_file), make=settings.makes_keys)
    elif environ.get(KEYS_VARIABLE):
        keys = read_keys(environ[KEYS_VARIABLE], KEYS_VARIABLE)
    else:
        raise ConfigError("keys", f"are needed to seal items: name a file, or set {KEYS_VARIABLE}")
    tenants = _tenants(settings, environ)
    if not is_loopback(settings.host) and not tenants:
        why = f"anybody could reach {settings.host}: set {TOKENS_VARIABLE} or name a file of bearer tokens"
        raise ConfigError("tokens", why)
    key = None if settings.key_env is None else _exported(settings.key_env, "the API key", settings, environ)
    headers = {
        name.lower(): _exported(variable, f"the header {name}", settings, environ)
        for name, variable in settings.env_http_headers.items()
    }
    return Secrets(keys=keys, tenants=tenants, upstream_key=key, upstream_headers=headers)


def _exported(variable: str, what: str, settings: GatewaySettings, environ: Mapping[str, str]) -> str:
    """What a variable holds, which the upstream is sent."""
    value = environ.get(variable, "").strip()
    if not value:
        raise ConfigError(variable, f"is not set; export it with {what} for {settings.upstream}")
    if not value.isascii() or not value.isprintable():
        raise ConfigError(variable, "holds a character that no header can have")
    return value


def _tenants(settings: GatewaySettings, environ: Mapping[str, str]) -> dict[bytes, str]:
    """Tokens, one a line or between commas: `TOKEN`, or `NAME=TOKEN`, where tokens of one name share what is theirs."""
    from refold.server.seal import words_of

    where = settings.tokens_file or TOKENS_VARIABLE
    try:
        text = Path(where).read_text(encoding="utf-8") if settings.tokens_file else environ.get(where, "")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(where, f"cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}") from None
    tenants: dict[bytes, str] = {}
    for number, line in words_of(text):
        name, named, token = line.partition("=")
        name, token = (name.strip(), token.strip()) if named and token.strip("=") else ("", line)
        if len(token) < SHORTEST_TOKEN:
            raise ConfigError(where, f"the token of line {number} is shorter than {SHORTEST_TOKEN} characters")
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise ConfigError(where, f"the token of line {number} holds a character that no bearer token can have")
        digest = sha256(token.encode()).digest()
        tenant = f"name:{name}" if name else f"token:{digest.hex()}"
        if tenants.setdefault(digest, tenant) != tenant:
            raise ConfigError(where, f"the token of line {number} was given another name before")
    return tenants


def readable_by_others(settings: GatewaySettings) -> list[str]:
    """The files of secrets that not only their owner may read."""
    files = [name for name in (settings.keys_file, settings.tokens_file, settings.store) if name is not None]
    return [name for name in files if Path(name).exists() and Path(name).stat().st_mode & OTHERS]
