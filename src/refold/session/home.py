"""Home: where refold's files and settings lie, and which model a name means."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from refold.core.config import Config, parse_config, with_override
from refold.core.jsonio import load
from refold.core.profile import Profile, parse_catalog, profile_for
from refold.errors import ConfigError
from refold.model.responses import ResponsesModel, api_key_from
from refold.rollout.catalogue import Catalogue

DEFAULT_MODEL = "gpt-5.5"


class Home(msgspec.Struct, frozen=True):
    """refold's own folder, and the real program's (read only, where it is)."""

    path: Path
    codex: Path | None

    @classmethod
    def find(cls, environ: Mapping[str, str] | None = None) -> Home:
        """`$REFOLD_HOME` or ~/.refold; `$CODEX_HOME` or ~/.codex if that exists."""
        env = os.environ if environ is None else environ
        own = Path(env.get("REFOLD_HOME") or Path.home() / ".refold").expanduser().absolute()
        codex = Path(env.get("CODEX_HOME") or Path.home() / ".codex").expanduser().absolute()
        return cls(own, codex if codex.is_dir() and codex != own else None)

    def catalogue(self) -> Catalogue:
        return Catalogue(self.path, [self.codex] if self.codex else [], indexed=True)

    def config(self, overrides: Iterable[tuple[str, Any]] = ()) -> Config:
        """`config.toml` with overrides on top. Raises ConfigError that names the key, the file and the line."""
        import tomllib  # only a file or an option needs it

        path = self.path / "config.toml"
        document: dict[str, Any] = {}
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(str(path), f"is not TOML: {error}") from None
        where = str(path)
        for key, value in overrides:
            document, where = with_override(document, key, value), f"{path} and -c"
        return parse_config(document, where)


def override(text: str) -> tuple[str, Any]:
    """`key=value` with a TOML value; a bare word is a text. Raises ConfigError."""
    import tomllib

    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(text, "must be key=value (for example model_context_window=128000)")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def profile_of(name: str, config: Config) -> Profile:
    """The facts about a model: the configured catalogue, the built-in table or the fallback, then what was set."""
    catalog = None
    if config.model_catalog_json:
        text = read_setting_file("model_catalog_json", config.model_catalog_json)
        try:
            document, _ = load(text.encode())
        except ValueError as error:
            raise ConfigError("model_catalog_json", f"{config.model_catalog_json} is not JSON: {error}") from None
        catalog = parse_catalog(document, config.model_catalog_json)
    return config.profile(profile_for(name, catalog))


def model_named(
    name: str, config: Config, environ: Mapping[str, str] | None = None, *, with_key: bool = True
) -> ResponsesModel:
    """The model that a name means with these settings. Raises ConfigError (unknown provider, missing key).

    `with_key` false: for what asks nothing of it; its key is looked up when it is first asked.
    """
    env = os.environ if environ is None else environ
    profile, provider = profile_of(name, config), config.provider(env)
    key = api_key_from(provider, env) if with_key else None
    if provider.wire_api == "chat":
        from refold.model.chat import ChatModel

        return ChatModel(profile, provider, api_key=key)
    return ResponsesModel(profile, provider, api_key=key)


def handoff_text(config: Config) -> str | None:
    """The configured text that asks for a summary: as it is, or a file's, trimmed. None = the protocol's own."""
    if config.compact_prompt and config.compact_prompt.strip():
        return config.compact_prompt
    if config.experimental_compact_prompt_file:
        path = config.experimental_compact_prompt_file
        text = read_setting_file("experimental_compact_prompt_file", path).strip()
        return text or None
    return None


def read_setting_file(key: str, name: str) -> str:
    """A file that a setting names. Raises ConfigError."""
    path = Path(name).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(key, f"{path} cannot be read: {why}") from None
