"""Settings and secrets: what cannot be is said with what to do, and no secret is shown."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold.errors import ConfigError, RequestRefused
from refold.server.callers import NOBODY, caller_of
from refold.server.settings import GatewaySettings, checked, is_loopback, read_secrets

KEY = base64.b64encode(bytes(32)).decode()
ENVIRON = {"REFOLD_GATEWAY_KEYS": KEY}
LOCAL = {"host": "127.0.0.1:1"}


def settings(**changes: Any) -> GatewaySettings:
    return GatewaySettings(**{"upstream": "http://localhost:1/v1", **changes})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"upstream": "localhost:8000"}, "upstream"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"idle_seconds": 0}, "idle_seconds"),
        ({"port": 70_000}, "port"),
        ({"workers": 2}, "store"),
        ({"workers": 2, "store": "x", "port": 0}, "port"),
    ],
)
def test_what_cannot_be_set_is_named(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(settings(**changes))
    assert caught.value.key == key


def test_address_that_others_reach_needs_tokens(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "10.0.0.1", "::", "gateway.example"):
        with pytest.raises(ConfigError, match="REFOLD_GATEWAY_TOKENS"):
            read_secrets(settings(host=host), ENVIRON)
        assert read_secrets(settings(host=host), {**ENVIRON, "REFOLD_GATEWAY_TOKENS": "t" * 16}).tenants
    for host in ("127.0.0.1", "127.3.2.1", "localhost", "::1"):
        assert is_loopback(host) and not read_secrets(settings(host=host), ENVIRON).tenants


def test_tokens_of_one_name_are_one_tenant(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# who may ask\nanna=first-token-of-anna\nanna=second-token-of-anna\nnobody-in-particular==\n")
    secrets = read_secrets(settings(tokens_file=str(path)), ENVIRON)

    def tenant(token: str) -> str:
        return caller_of({"authorization": f"Bearer {token}"}, secrets).tenant

    assert tenant("first-token-of-anna") == tenant("second-token-of-anna") != tenant("nobody-in-particular==")
    with pytest.raises(RequestRefused):
        tenant("anna=first-token-of-anna")


def test_secrets_that_are_missing_or_short_are_named_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="REFOLD_GATEWAY_KEYS"):
        read_secrets(settings(), {})
    with pytest.raises(ConfigError, match="MY_KEY: is not set"):
        read_secrets(settings(key_env="MY_KEY"), ENVIRON)
    with pytest.raises(ConfigError) as caught:
        read_secrets(settings(), {**ENVIRON, "REFOLD_GATEWAY_TOKENS": "short"})
    assert "16 characters" in str(caught.value) and "short " not in str(caught.value)
    with pytest.raises(ConfigError, match="nowhere"):
        read_secrets(settings(tokens_file=str(tmp_path / "nowhere")), ENVIRON)


def test_nothing_that_is_printed_or_handed_on_holds_a_secret() -> None:
    environ = {**ENVIRON, "REFOLD_GATEWAY_TOKENS": "token-number-one", "UP": "sk-upstream-secret"}
    mine = settings(key_env="UP")
    secrets = read_secrets(mine, environ)
    caller = caller_of({"authorization": "Bearer token-number-one"}, secrets)
    shown = f"{secrets!r} {mine!r} {caller!r} {msgspec.json.encode(mine)}"
    assert not any(secret in shown for secret in (KEY, "token-number-one", "sk-upstream-secret"))
    assert caller.authorization == "Bearer sk-upstream-secret"


def test_without_tokens_each_bearer_is_a_tenant() -> None:
    secrets = read_secrets(settings(), ENVIRON)
    nobody, one, two = (
        caller_of({**LOCAL, **({"authorization": f"Bearer {name}"} if name else {})}, secrets)
        for name in ("", "a", "b")
    )
    assert nobody.tenant == NOBODY and nobody.authorization is None
    assert len({nobody.tenant, one.tenant, two.tenant}) == 3 and one.authorization == "Bearer a"
