"""ServeSettings: what `[serve]` of the settings says to `refold serve` (docs/gateway.md); None means not set.

Keys are those of `refold.server.GatewaySettings`, which has the defaults. No key and no token is ever written here:
the table names the files and the variables that hold them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from refold.core.chat_completions_settings import ChatSettings

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[serve]`. `provider`: the name of a `[model_providers.X]` that is the upstream, in place of `upstream`."""

    upstream: str | None = None  # base URL
    provider: str | None = None
    upstream_api: Literal["responses", "chat"] | None = None
    key_env: str | None = None
    query_params: dict[str, str] | None = None
    http_headers: dict[str, str] | None = None
    env_http_headers: dict[str, str] | None = None  # header name -> environment variable
    model_map: dict[str, str] | None = None
    chat: ChatSettings | None = None
    context_window: Count | None = None  # tokens

    compaction: Literal["model", "flattened", "outline"] | None = None
    outline_when_it_fails: bool | None = None
    accepts: tuple[str, ...] | None = None
    unknown_items: Literal["drop", "pass", "refuse"] | None = None
    developer_role: Literal["developer", "system", "user"] | None = None
    leave_out: tuple[str, ...] | None = None

    host: str | None = None
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None
    workers: Count | None = None
    keys_file: str | None = None  # path
    tokens_file: str | None = None  # path
    store: str | None = None  # path
    retention_days: Annotated[float, msgspec.Meta(ge=0)] | None = None

    max_body_bytes: Count | None = None
    max_requests: Count | None = None
    max_requests_per_tenant: Count | None = None
    body_seconds: Seconds | None = None
    idle_seconds: Seconds | None = None
    shutdown_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    log_requests: bool | None = None

    def said(self) -> dict[str, Any]:
        """What is set, by the names of GatewaySettings (and `provider`)."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in values if value is not None}


# What people write for a key: the option's name, or the secret itself.
CALLED = {
    "keys": "keys_file",
    "tokens": "tokens_file",
    "retention": "retention_days",
    "max_body": "max_body_bytes",
    "base_url": "upstream",
    "env_key": "key_env",
}
SECRET = frozenset({"api_key", "bearer_token", "key", "token", "upstream_key"})
OF_AN_ADDRESS = ("key_env", "query_params", "http_headers", "env_http_headers")  # what an upstream alone is sent
