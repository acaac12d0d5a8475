"""Profile: the facts about a model; Provider: the facts about the service that hosts it (spec §4.1, §2.1)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from refold.core.chat_completions_settings import ChatSettings
from refold.core.jsonio import is_list, is_object
from refold.core.truncate import Budget
from refold.errors import ConfigError

FALLBACK_CONTEXT_WINDOW = 272_000  # tokens; what the real program assumes of a model that it does not know
EFFECTIVE_PERCENT = 95  # of the context window is what may be used; the rest is the provider's margin
AUTO_COMPACT_TENTHS = 9  # compaction is due at 9/10 of the full window
GAUGE_BASELINE = 12_000  # tokens that every session holds; the gauge does not count them


AZURE_MARKS = (
    "openai.azure.",
    "cognitiveservices.azure.",
    "aoai.azure.",
    "azure-api.",
    "azurefd.",
    "windows.net/openai",
)


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one model. `context_window` in tokens, None = unknown."""

    slug: str
    context_window: int | None = FALLBACK_CONTEXT_WINDOW
    max_context_window: int | None = None
    auto_compact_token_limit: int | None = None  # tokens; still clamped to 90 % of a known window
    truncation: Budget = Budget("bytes", 10_000)
    comp_hash: str | None = None
    base_instructions: str | None = None
    input_modalities: tuple[str, ...] = ("text", "image")
    supports_parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    reasoning_summary: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    lite: bool = False  # takes tools and base instructions as its first input items (`use_responses_lite`)
    known: bool = True  # False: fallback facts, worth one notice

    @property
    def usable_window(self) -> int | None:
        """Tokens that may be used: 95 % of the context window; None when it is unknown."""
        return self.context_window * EFFECTIVE_PERCENT // 100 if self.context_window else None

    @property
    def compact_limit(self) -> int | None:
        """Tokens at which compaction is due: as configured, at most 90 % of a known window; None = never by count."""
        ceiling = self.context_window * AUTO_COMPACT_TENTHS // 10 if self.context_window else None
        if self.auto_compact_token_limit is None:
            return ceiling
        return self.auto_compact_token_limit if ceiling is None else min(self.auto_compact_token_limit, ceiling)

    def with_usable(self, tokens: int) -> Profile:
        """The same model with a context window of which so many tokens are usable."""
        return msgspec.structs.replace(self, context_window=-(-tokens * 100 // EFFECTIVE_PERCENT))

    def percent_left(self, used: int) -> int | None:
        """Percent of the context window still free, 0–100; the baseline that every session holds is not counted."""
        if not self.context_window:
            return None
        room = self.context_window - GAUGE_BASELINE
        if room <= 0:
            return 0
        free = room - max(0, used - GAUGE_BASELINE)
        return max(0, min(100, (200 * free + room) // (2 * room)))


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one provider: where it answers and how patient to be with it."""

    id: str = "openai"
    name: str = "OpenAI"
    base_url: str = "https://api.openai.com/v1"
    env_key: str | None = "OPENAI_API_KEY"  # the environment variable that holds the key
    wire_api: Literal["responses", "chat"] = "responses"  # chat: Chat Completions, which is all that some servers have
    chat: ChatSettings = ChatSettings()  # how that is spelled
    query_params: dict[str, str] = {}
    http_headers: dict[str, str] = {}
    env_http_headers: dict[str, str] = {}  # header name -> environment variable
    request_max_retries: int = 4
    stream_max_retries: int = 5
    stream_idle_timeout_ms: int = 300_000
    longest_wait_ms: int = 300_000  # whoever asks to wait longer is not waited for
    supports_websockets: bool = False
    base_instructions_as: Literal["message", "instructions"] = "message"  # the first input item, or the body's own key
    developer_role: Literal["developer", "system", "user"] = "developer"  # many local chat templates know no developer
    send_item_ids: bool = True
    repair_call_arguments: bool = False  # True: arguments that are no JSON object are sent as {}
    extra_body: dict[str, Any] = {}  # more keys of every request's body; they win over refold's own
    leave_out: tuple[str, ...] = ()  # keys of the body that this provider does not take
    compaction: Literal["auto", "local", "remote", "endpoint"] = "auto"  # auto: OpenAI and Azure compact themselves

    @property
    def is_openai(self) -> bool:
        """Only OpenAI itself is sent an item's internal metadata."""
        return self.name == "OpenAI"

    @property
    def compacts(self) -> bool:
        """Whether this provider is asked to compact (a `compaction_trigger`, or at its endpoint), not for a summary
        (spec §4.4, §6.2)."""
        if self.wire_api == "chat":
            return False
        if self.compaction != "auto":
            return self.compaction in ("remote", "endpoint")
        address = self.base_url.lower()
        return self.is_openai or self.name.lower() == "azure" or any(mark in address for mark in AZURE_MARKS)


_TOKENS_10K = Budget("tokens", 10_000)
_BYTES_10K = Budget("bytes", 10_000)

KNOWN_MODELS: dict[str, Profile] = {
    profile.slug: profile
    for profile in (
        Profile(slug="gpt-5.6", truncation=_TOKENS_10K, lite=True),
        Profile(slug="gpt-5.5", truncation=_TOKENS_10K),
        Profile(slug="gpt-5.4", truncation=_TOKENS_10K),
        Profile(slug="gpt-5.4-mini", truncation=_TOKENS_10K),
        Profile(slug="codex-auto-review", truncation=_TOKENS_10K),
        Profile(slug="gpt-5.2", truncation=_BYTES_10K),
        Profile(slug="gpt-5.2-codex", truncation=_BYTES_10K),
    )
}


def profile_for(slug: str, catalog: dict[str, Profile] | None = None) -> Profile:
    """The facts about a model: the catalogue's, the built-in table's, or fallback facts with `known` false."""
    if catalog and slug in catalog:
        return catalog[slug]
    return KNOWN_MODELS.get(slug) or Profile(slug=slug, known=False)


def parse_catalog(document: Any, where: str) -> dict[str, Profile]:
    """A `model_catalog_json` document `{"models": [{slug, context_window, …}]}` as profiles by slug.

    Raises ConfigError naming `where` and the model that is wrong.
    """
    models = document.get("models") if is_object(document) else None
    if not is_list(models):
        raise ConfigError("model_catalog_json", f'{where} must hold {{"models": [...]}}')
    profiles = (_catalog_profile(entry, where) for entry in models)
    return {profile.slug: profile for profile in profiles}


def _catalog_profile(entry: Any, where: str) -> Profile:
    if not is_object(entry) or not isinstance(entry.get("slug"), str):
        raise ConfigError("model_catalog_json", f"{where}: a model has no slug")
    slug = entry["slug"]

    def tokens(key: str) -> int | None:
        value = entry.get(key)
        if value is None or value == 0:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError("model_catalog_json", f"{where}: {slug}.{key} must be a number of tokens, not {value!r}")
        return value

    def fact(key: str, kind: Any) -> Any:
        try:
            return msgspec.convert(entry.get(key), kind)
        except msgspec.ValidationError as error:
            raise ConfigError("model_catalog_json", f"{where}: {slug}.{key} is wrong: {error}") from None

    largest = tokens("max_context_window")
    return Profile(
        slug=slug,
        context_window=tokens("context_window") or largest,
        max_context_window=largest,
        auto_compact_token_limit=tokens("auto_compact_token_limit"),
        truncation=fact("truncation_policy", Budget | None) or _BYTES_10K,
        comp_hash=fact("comp_hash", str | None),
        base_instructions=fact("base_instructions", str | None),
        input_modalities=fact("input_modalities", tuple[str, ...] | None) or ("text", "image"),
        supports_parallel_tool_calls=fact("supports_parallel_tool_calls", bool | None) is not False,
        reasoning_effort=fact("default_reasoning_level", str | None) or fact("reasoning_effort", str | None),
        verbosity=fact("default_verbosity", str | None) if entry.get("support_verbosity") else None,
        lite=fact("use_responses_lite", bool | None) is True,
    )
