"""Config: what a person set, in the real program's key names and shapes; parsed and checked here (spec §4.7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec

from refold.core.chat_completions_settings import ChatSettings
from refold.core.hook_settings import HookSettings, parse_hooks
from refold.core.jsonio import is_object
from refold.core.limits import Compaction, Features, Limits, Price, TokenBudget
from refold.core.mcp import McpServer, check_server
from refold.core.modes import Mode, mode_fault, modes_fault
from refold.core.permissions import ApprovalPolicy, EnvironmentPolicy, Reviewer, SandboxMode, WorkspaceWrite
from refold.core.plugin import PluginSettings
from refold.core.profile import Profile, Provider
from refold.core.records import Scope
from refold.core.redaction_settings import RedactionSettings, check_redaction
from refold.core.serve_settings import CALLED, SECRET, ServeSettings
from refold.core.skill import SkillSettings
from refold.core.truncate import policy_with_limit
from refold.errors import ConfigError

PROJECT_DOC_MAX_BYTES = 32 * 1024
BUDGET_TEXT_BYTES = 2_000  # of each text of a token budget, as in the real program

MAY_BE_ZERO = frozenset(
    {"project_doc_max_bytes", "model_post_turn_compact_threshold_percent"}
)  # 0 = read none; a limit of 0 tokens would compact for ever

# Keys of the real program that look like ours but are not: no misspellings.
FOREIGN_KEYS = frozenset(
    {
        "model_instructions_file",
        "model_supports_reasoning_summaries",
        "plan_mode_reasoning_effort",
    }
)
_Table = TypeVar("_Table", bound=msgspec.Struct)
ALIKE = 0.8  # how near a misspelling is, by difflib: `modle` is, and no other key of the real program


Share: TypeAlias = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class RolloutSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[rollout]`: how new sessions are written. `blobs`: long texts and pictures once, beside the file
    (docs/rollout.md)."""

    blobs: bool = False


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Settings; None means not set. Limits are in tokens unless the name says bytes."""

    model: str | None = None
    model_provider: str = "openai"
    model_providers: dict[str, Provider] = {}
    mcp_servers: dict[str, McpServer] = {}
    model_context_window: int | None = None
    model_auto_compact_token_limit: int | None = None
    model_auto_compact_token_limit_scope: Scope = "total"
    model_post_turn_compact_threshold_percent: int = 0  # of the usable window, after an answer; 0 = not then
    compaction: Compaction = Compaction()
    compact_ahead: Share | None = None  # of the limit, from where on it is done beside the turn; None = not
    features: Features = Features()
    model_reasoning_effort: str | None = None
    model_reasoning_summary: str | None = None
    model_verbosity: str | None = None
    service_tier: str | None = None
    model_catalog_json: str | None = None  # path
    tool_output_token_limit: int | None = None
    compact_prompt: str | None = None
    experimental_compact_prompt_file: str | None = None  # path
    approval_policy: ApprovalPolicy | None = None
    approvals_reviewer: Reviewer = "user"
    sandbox_mode: SandboxMode | None = None
    sandbox_workspace_write: WorkspaceWrite = WorkspaceWrite()
    shell_environment_policy: EnvironmentPolicy = EnvironmentPolicy()
    project_doc_max_bytes: int = PROJECT_DOC_MAX_BYTES
    project_doc_fallback_filenames: tuple[str, ...] = ()
    developer_instructions: str | None = None
    include_permissions_instructions: bool = True  # false: the model is not told of them
    include_environment_context: bool = True
    collaboration_mode: str | None = None  # None: as in the session's last turn, else default
    collaboration_modes: dict[str, Mode] = {}
    include_collaboration_mode_instructions: bool = True
    personality: str | None = None  # friendly, pragmatic, none, or a text
    plugins: dict[str, PluginSettings] = {}
    include_apps_instructions: bool = True
    skills: SkillSettings = SkillSettings()
    limits: Limits = Limits()
    model_price: Price | None = None
    hooks: HookSettings = HookSettings()
    redaction: RedactionSettings = RedactionSettings()
    rollout: RolloutSettings = RolloutSettings()
    serve: ServeSettings = ServeSettings()

    def profile(self, facts: Profile) -> Profile:
        """The facts about a model, after what was set here."""
        window = self.model_context_window or facts.context_window
        if facts.max_context_window and window:
            window = min(window, facts.max_context_window)
        return msgspec.structs.replace(
            facts,
            context_window=window,
            known=facts.known or self.model_context_window is not None,
            auto_compact_token_limit=self.model_auto_compact_token_limit or facts.auto_compact_token_limit,
            truncation=policy_with_limit(facts.truncation, self.tool_output_token_limit),
            reasoning_effort=self.model_reasoning_effort or facts.reasoning_effort,
            reasoning_summary=self.model_reasoning_summary or facts.reasoning_summary,
            verbosity=self.model_verbosity or facts.verbosity,
            service_tier=self.service_tier or facts.service_tier,
        )

    def provider(self, environ: Mapping[str, str]) -> Provider:
        """The provider in force. Raises ConfigError when `model_provider` names none that is defined."""
        if self.model_provider in self.model_providers:
            return self.model_providers[self.model_provider]
        if self.model_provider != "openai":
            known = ", ".join(sorted({"openai", *self.model_providers}))
            why = f"no [model_providers.{self.model_provider}] is defined (known: {known})"
            raise ConfigError("model_provider", why)
        base_url = environ.get("OPENAI_BASE_URL", "").strip()
        if not base_url:
            return Provider()
        check_base_url("OPENAI_BASE_URL", base_url, "environment")
        name = "OpenAI" if "api.openai.com" in base_url else "openai-compatible"
        return Provider(name=name, base_url=base_url)


def parse_config(document: Mapping[str, Any], where: str) -> Config:
    """Check a config document. Keys that refold does not use are ignored, misspelt ones of its own are not.

    Raises ConfigError that names the key and says what to do; `where` is the file or option it came from.
    """
    names = Config.__struct_fields__
    for key in document:
        if key not in names and key not in FOREIGN_KEYS:
            near = nearest(key, names)
            if near:
                raise ConfigError(key, f"is not a setting; did you mean {near[0]}? ({where})")
    known = {key: value for key, value in document.items() if key in names}
    raw_providers = known.pop("model_providers", {})
    servers = _servers(known.pop("mcp_servers", {}), where)
    hooks = parse_hooks(known.pop("hooks", {}), where)
    features = _features(known.pop("features", {}), where)
    modes = _modes(known.pop("collaboration_modes", {}), known.get("collaboration_mode"), where)
    plugins = _plugins(known.pop("plugins", {}), where)
    serve = _serve(known.pop("serve", {}), where)
    values = {key: _checked(key, value, where) for key, value in known.items()}
    check_redaction(values.get("redaction", RedactionSettings()), where)
    providers = _providers(raw_providers, where)
    return Config(
        **values,
        model_providers=providers,
        mcp_servers=servers,
        hooks=hooks,
        features=features,
        collaboration_modes=modes,
        plugins=plugins,
        serve=serve,
    )


_FIELD_TYPES = {field.name: field.type for field in msgspec.structs.fields(Config)}


# Tables of ours, and whether the real program has more keys in them.
_TABLES: dict[str, tuple[type[msgspec.Struct], bool]] = {
    "sandbox_workspace_write": (WorkspaceWrite, True),
    "shell_environment_policy": (EnvironmentPolicy, True),
    "limits": (Limits, False),
    "compaction": (Compaction, False),
    "model_price": (Price, False),
    "redaction": (RedactionSettings, False),
    "skills": (SkillSettings, True),
    "rollout": (RolloutSettings, False),
}


def _checked(key: str, value: Any, where: str) -> Any:
    if key in _TABLES:
        kind, foreign = _TABLES[key]
        known = _known_keys(key, value, kind.__struct_fields__, where)
        unknown = [] if foreign else [given for given in value if given not in known]
        if unknown:
            names = ", ".join(kind.__struct_fields__)
            raise ConfigError(f"{key}.{unknown[0]}", f"is not a setting; there are {names} ({where})")
        value = known
    found = _converted(key, value, _FIELD_TYPES[key], where)
    least = 0 if key in MAY_BE_ZERO else 1
    if isinstance(found, int) and not isinstance(found, bool) and found < least:
        raise ConfigError(key, f"must be {'at least' if least == 0 else 'above'} 0, not {found} ({where})")
    return found


def _features(value: Any, where: str) -> Features:
    """Of the real program's features only the token budget is ours; the others are no settings of refold."""
    key = "features.token_budget"
    table = _known_keys("features", value, ("token_budget",), where).get("token_budget", {})
    known = _known_keys(
        key, {"enabled": table} if isinstance(table, bool) else table, TokenBudget.__struct_fields__, where
    )
    try:
        budget = msgspec.convert(known, TokenBudget)
    except msgspec.ValidationError as error:
        raise ConfigError(key, f"{_plain(error)} ({where})") from None
    for name, given in known.items():
        if isinstance(given, str) and len(given.encode("utf-8", "replace")) > BUDGET_TEXT_BYTES:
            raise ConfigError(f"{key}.{name}", f"must be at most {BUDGET_TEXT_BYTES:,} bytes ({where})")
        if name.endswith("_tokens") and isinstance(given, int) and given < 1:
            raise ConfigError(f"{key}.{name}", f"must be above 0, not {given} ({where})")
    if budget.auto_compact_fallback_prompt and budget.auto_compact_fallback_buffer_tokens is None:
        missing = f"{key}.auto_compact_fallback_buffer_tokens"
        raise ConfigError(missing, f"must be set with auto_compact_fallback_prompt: the room for its answer ({where})")
    return Features(token_budget=budget)


def _providers(value: Any, where: str) -> dict[str, Provider]:
    if not is_object(value):
        raise ConfigError("model_providers", f"must be tables like [model_providers.mine] ({where})")
    return {name: _provider(name, table, where) for name, table in value.items()}


def _provider(name: str, table: Any, where: str) -> Provider:
    key = f"model_providers.{name}"
    known = _known_keys(key, table, set(Provider.__struct_fields__) - {"id"}, where)
    if not table.get("base_url"):
        raise ConfigError(f"{key}.base_url", f"is missing: the address before /responses ({where})")
    check_base_url(f"{key}.base_url", table["base_url"], where)
    chat = _known_keys(f"{key}.chat", table.get("chat", {}), ChatSettings.__struct_fields__, where)
    try:
        provider = msgspec.convert({"name": name, "env_key": None, **known, "chat": chat, "id": name}, Provider)
    except msgspec.ValidationError as error:
        raise ConfigError(key, f"{_plain(error)} ({where})") from None
    if provider.wire_api == "chat" and (provider.compaction in ("remote", "endpoint") or provider.supports_websockets):
        only = "supports_websockets" if provider.supports_websockets else "compaction"
        raise ConfigError(f"{key}.{only}", f'is of the Responses API only, not of wire_api = "chat" ({where})')
    return provider


def _servers(value: Any, where: str) -> dict[str, McpServer]:
    if not is_object(value):
        raise ConfigError("mcp_servers", f"must be tables like [mcp_servers.docs] ({where})")
    return {name: _server(f"mcp_servers.{name}", table, where) for name, table in value.items()}


def _server(key: str, table: Any, where: str) -> McpServer:
    known = _known_keys(key, table, McpServer.__struct_fields__, where)
    if "bearer_token" in table:
        why = f"would be a secret in a file; name a variable that holds it in bearer_token_env_var ({where})"
        raise ConfigError(f"{key}.bearer_token", why)
    try:
        server = msgspec.convert(known, McpServer)
    except msgspec.ValidationError as error:
        raise ConfigError(key, f"{_plain(error)} ({where})") from None
    check_server(key, server, where)
    return server


def _serve(value: Any, where: str) -> ServeSettings:
    """The table of `refold serve`: every key in it is one, so that a limit is never lost to a misspelt name."""
    if not is_object(value):
        raise ConfigError("serve", f"must be a table: [serve] ({where})")
    kinds = {field.name: field.type for field in msgspec.structs.fields(ServeSettings)}
    found: dict[str, Any] = {}
    for name, given in value.items():
        key = f"serve.{name}"
        if name in SECRET:
            raise ConfigError(key, f"would be a secret in a file; name a variable that holds it in key_env ({where})")
        if name not in kinds:
            near = CALLED.get(name) or next(iter(nearest(name, kinds)), None)
            said = f"did you mean {near}?" if near else f"there are {', '.join(kinds)}"
            raise ConfigError(key, f"is not a setting; {said} ({where})")
        if name == "chat":
            given = _known_keys(key, given, ChatSettings.__struct_fields__, where)
        found[name] = _converted(key, given, kinds[name], where)
    if found.get("upstream") is not None:
        check_base_url("serve.upstream", found["upstream"], where)
        if "provider" in found:
            raise ConfigError("serve.provider", f"stands beside upstream: remove one of them ({where})")
    return ServeSettings(**found)


def _converted(key: str, value: Any, kind: Any, where: str) -> Any:
    """A value of this type. Raises ConfigError that says what it must be."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        choices = [str(one) for one in _literals(kind)]
        hint = f"; one of {', '.join(choices)}" if choices else ""
        raise ConfigError(key, f"{_plain(error)}{hint} ({where})") from None


def _modes(value: Any, chosen: Any, where: str) -> dict[str, Mode]:
    modes = _tables("collaboration_modes", value, Mode, where)
    if bad := modes_fault(modes):
        raise ConfigError(f"collaboration_modes.{bad[0]}", f"{bad[1]} ({where})")
    if isinstance(chosen, str) and (why := mode_fault(chosen, modes)):
        raise ConfigError("collaboration_mode", f"{why} ({where})")
    return modes


def _plugins(value: Any, where: str) -> dict[str, PluginSettings]:
    plugins = _tables("plugins", value, PluginSettings, where)
    for name, one in plugins.items():
        if one.path is not None and not one.path.startswith(("/", "~/")):
            why = f"must be an absolute folder, or begin with ~/, not {one.path!r} ({where})"
            raise ConfigError(f"plugins.{name}.path", why)
    return plugins


def _tables(key: str, value: Any, kind: type[_Table], where: str) -> dict[str, _Table]:
    """Tables of one kind by their names."""
    if not is_object(value):
        raise ConfigError(key, f"must be tables like [{key}.NAME] ({where})")
    found: dict[str, _Table] = {}
    for name, table in value.items():
        known = _known_keys(f"{key}.{name}", table, kind.__struct_fields__, where)
        try:
            found[name] = msgspec.convert(known, kind)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{key}.{name}", f"{_plain(error)} ({where})") from None
    return found


def _known_keys(key: str, table: Any, names: Collection[str], where: str) -> dict[str, Any]:
    """The keys of a table that are settings; others are ignored unless they look like a misspelt one."""
    if not is_object(table):
        raise ConfigError(key, f"must be a table ({where})")
    for given in table:
        if given not in names and (near := nearest(given, names)):
            raise ConfigError(f"{key}.{given}", f"is not a setting; did you mean {near[0]}? ({where})")
    return {given: value for given, value in table.items() if given in names}


def _literals(kind: Any) -> list[Any]:
    """The values that a setting may have, where they are counted."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [value for part in get_args(kind) for value in _literals(part)]


_PLAIN_WORDS = (
    ("`$.", "`"),
    (" - at `$`", ""),
    (" | null`", "`"),
    ("`int`", "a whole number"),
    ("`float`", "a number with a fraction"),
    ("`str`", "a text"),
    ("`bool`", "true or false"),
    ("`array`", "a list"),
    ("`object`", "a table"),
)


def nearest(given: str, names: Collection[str]) -> list[str]:
    """The name that a misspelt one most likely means, if any."""
    import difflib  # only a wrong key needs it

    return difflib.get_close_matches(given, names, n=1, cutoff=ALIKE)


def check_base_url(key: str, value: Any, where: str) -> None:
    """Raises ConfigError unless the value is an http address with a host."""
    scheme, _, rest = value.partition("://") if isinstance(value, str) else ("", "", "")
    if scheme.lower() not in ("http", "https") or not rest.strip("/ "):
        raise ConfigError(key, f"must be an address like https://host/v1, not {value!r} ({where})")


def _plain(error: Exception) -> str:
    """A validation error in words that a person who edits a file uses."""
    text = str(error)
    for technical, plain in _PLAIN_WORDS:
        text = text.replace(technical, plain)
    return text[0].lower() + text[1:]


def with_override(document: dict[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    """The document with `a.b.c` set to a value, other keys shared."""
    head, _, rest = dotted.partition(".")
    if not rest:
        return {**document, head: value}
    inner = document.get(head)
    return {**document, head: with_override(inner if is_object(inner) else {}, rest, value)}
