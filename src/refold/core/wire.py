"""Wire: Prompt + provider + profile → request bytes, each entry encoded once (spec §9.1, oracle §2).

Rule 1: an entry's bytes are the same in every request, so a request only grows at its end and prompt caches hit.
Rule 2: what is encoded is joined once: a request after k new entries encodes and joins k, not the whole history.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from refold.core.history import Entry
from refold.core.items import Item, argument_fault, message, spelled, without_detail
from refold.core.jsonio import dump
from refold.core.profile import Profile, Provider
from refold.core.prompt import Prompt

BASE_NAMESPACE = uuid.NAMESPACE_OID  # of the base instructions' id: constant for a thread
LITE_HEADER = "x-openai-internal-codex-responses-lite"
BLOCK_BYTES = 16 * 1024  # encoded items are joined to blocks of about this size
# Keys of a sampling request that `/responses/compact` refuses (case S07), whatever the settings say.
NOT_AT_ENDPOINT = frozenset({"stream", "store", "include", "tool_choice", "client_metadata", "previous_response_id"})


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request, ready to send: the body is head + parts joined by commas + tail; headers are name → value.

    A part is the JSON of one or several input items, joined by commas; `items` counts them; `sha256` is the body's.
    The last of the items are `entries`, whose bytes are in `encoded`: for a connection that need not say again what it
    has said. A request that no Wire made has no `identity` and no entries: it can only be sent whole.
    """

    head: bytes  # ends with `"input":[`
    parts: tuple[bytes, ...]
    tail: bytes  # its last key is `client_metadata`, save in a request for `/responses/compact`
    items: int
    sha256: str = ""
    headers: dict[str, str] = {}
    identity: Identity | None = None
    entries: tuple[Entry, ...] = ()
    encoded: Mapping[Entry, bytes] = {}

    def body(self) -> bytes:
        """The whole JSON body."""
        return b"".join((self.head, b",".join(self.parts), self.tail))

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.head) + sum(map(len, self.parts)) + max(0, len(self.parts) - 1) + len(self.tail)

    @property
    def base(self) -> tuple[bytes, ...]:
        """The items before the entries (tools of a lite model, base instructions), one part each."""
        return self.parts[: self.items - len(self.entries)]

    def since(self, count: int) -> list[bytes]:
        """The bytes of each entry from number `count` on."""
        return [self.encoded[entry] for entry in self.entries[count:]]


class Digest:
    """The SHA-256 of bodies that grow at their end: what stands in blocks is hashed once. Mutable."""

    def __init__(self) -> None:
        self._start: bytes | None = None
        self._blocks: list[bytes] = []
        self._count = 0
        self._state = sha256()

    def of(self, start: bytes, blocks: list[bytes], loose: list[bytes], tail: bytes) -> str:
        """Of start + blocks + loose parts, joined by commas where an item stands before, + tail."""
        if start != self._start or blocks is not self._blocks or len(blocks) < self._count:
            self._start, self._blocks, self._count, self._state = start, blocks, 0, sha256(start)
        joined = not start.endswith(b"[")
        for block in blocks[self._count :]:
            if joined or self._count:
                self._state.update(b",")
            self._state.update(block)
            self._count += 1
        state = self._state.copy()
        rest = b",".join(loose)
        state.update(b"," + rest if rest and (joined or self._count) else rest)
        state.update(tail)
        return state.hexdigest()


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks: ids that a provider may use for caching and tracing."""

    thread_id: str
    turn_id: str | None = None
    window_number: int = 0
    request_kind: str = "turn"  # or "compaction", or "prewarm": it only prepares the first turn


PROVIDER_FIELDS = (
    "base_instructions_as",
    "developer_role",
    "send_item_ids",
    "repair_call_arguments",
    "extra_body",
    "leave_out",
)
PROFILE_FIELDS = (
    "slug",
    "input_modalities",
    "supports_parallel_tool_calls",
    "reasoning_effort",
    "reasoning_summary",
    "verbosity",
    "service_tier",
    "lite",
)


def spelling_of(provider: Provider, profile: Profile) -> dict[str, Any]:
    """What of a provider and a model changes a request; see `wire_for`."""
    return {
        "openai": provider.is_openai,
        "provider": {name: getattr(provider, name) for name in PROVIDER_FIELDS},
        "model": {name: getattr(profile, name) for name in PROFILE_FIELDS},
    }


def wire_for(spelling: dict[str, Any]) -> Wire:
    """A wire that spells as another one did. Raises ValueError for what is no such thing."""
    name = "OpenAI" if spelling.get("openai") else "as sent"
    provider = msgspec.convert({**spelling.get("provider", {}), "name": name}, Provider)
    return Wire(provider, msgspec.convert(spelling.get("model", {}), Profile))


def hash_of(value: Any) -> str:
    """The name under which something is known in a log: 16 hex digits of the SHA-256 of its JSON text."""
    return sha256(dump(value)).hexdigest()[:16]


class Wire:
    """Spells prompts for one provider and profile. Mutable: it remembers each entry's bytes."""

    def __init__(self, provider: Provider, profile: Profile) -> None:
        self.provider = provider
        self.profile = profile
        self.encodes = 0  # how many items were encoded, for tests that count
        self.repaired: list[str] = []  # call ids whose arguments were replaced by {}; whoever tells of it clears it
        self._bytes: dict[Entry, bytes] = {}
        self._entries: tuple[Entry, ...] = ()  # of the last request; their bytes are the blocks, then the loose parts
        self._blocks: list[bytes] = []
        self._loose: list[bytes] = []
        self._loose_size = 0
        self._digest = Digest()
        self._tools: tuple[dict[str, Any], ...] = ()
        self._tools_hash = hash_of(())
        plain = provider.developer_role == "developer" and provider.send_item_ids and not provider.repair_call_arguments
        self._is_plain = plain and not profile.lite  # an item needs no more than `spelled`
        self.spelling = spelling_of(provider, profile)
        self.spelling_hash = hash_of(self.spelling)

    def request(self, prompt: Prompt, identity: Identity) -> Request:
        """The request for one sampling. Body keys stand in the real program's order."""
        base = self._base(prompt, identity)
        head = b'{"model":' + dump(self.profile.slug)
        if prompt.base_instructions and self._as_key:
            head += b',"instructions":' + dump(prompt.base_instructions)
        head += b',"stream":true,"input":['
        metadata = client_metadata(identity)
        tail = b"]," + dump(self._settings(prompt, metadata))[1:]
        return self._joined(head, base, tail, prompt, identity, _headers(metadata))

    def compact_request(self, prompt: Prompt, identity: Identity) -> Request:
        """The request for `/responses/compact`, which is answered with a document: no key of a stream (spec §6.2)."""
        metadata, lite = client_metadata(identity), self.profile.lite
        told = {key: value for key, value in self._settings(prompt, metadata).items() if key not in NOT_AT_ENDPOINT}
        told = {key: value for key, value in told.items() if value or key not in ("tools", "reasoning")}
        base = self._base(prompt, identity) if lite else []
        instructions = {} if lite or not prompt.base_instructions else {"instructions": prompt.base_instructions}
        head = b'{"model":' + dump(self.profile.slug) + b',"input":['
        rest = {**instructions, **told}
        tail = b"]" + (b"," if rest else b"") + dump(rest)[1:]
        headers = {name: value for name, value in _headers(metadata).items() if name != "x-client-request-id"}
        return self._joined(head, base, tail, prompt, identity, headers)

    def _joined(
        self, head: bytes, base: list[bytes], tail: bytes, prompt: Prompt, identity: Identity, headers: dict[str, str]
    ) -> Request:
        self._encode(prompt.entries)
        digest = self._digest.of(head + b",".join(base), self._blocks, self._loose, tail)
        return Request(
            head=head,
            parts=(*base, *self._blocks, *self._loose),
            tail=tail,
            items=len(base) + len(prompt.entries),
            sha256=digest,
            headers=headers | ({LITE_HEADER: "true"} if self.profile.lite else {}),
            identity=identity,
            entries=prompt.entries,
            encoded=self._bytes,
        )

    def hash_of_tools(self, tools: tuple[dict[str, Any], ...]) -> str:
        """The hash under which these schemas are known; found once for as long as they are the same."""
        if tools != self._tools:
            self._tools, self._tools_hash = tools, hash_of(tools)
        return self._tools_hash

    @property
    def _as_key(self) -> bool:
        return self.provider.base_instructions_as == "instructions" and not self.profile.lite

    def _base(self, prompt: Prompt, identity: Identity) -> list[bytes]:
        """What stands before the history: the tools of a lite model, and the base instructions."""
        own = uuid.uuid5(BASE_NAMESPACE, identity.thread_id)
        items: list[Item] = []
        if self.profile.lite and prompt.tools:
            named = {"type": "additional_tools", "id": f"at_{own}", "role": "developer"}
            items.append({**named, "tools": list(prompt.tools)})
        if prompt.base_instructions and not self._as_key:
            items.append(message("developer", [prompt.base_instructions], id=f"msg_{own}"))
        return [dump(self._spelled(item)) for item in items]

    def _encode(self, entries: tuple[Entry, ...]) -> None:
        """Encode the entries; where the last request's are a prefix of these, only what is new is looked at."""
        known = len(self._entries)
        if entries[:known] != self._entries:
            known, self._blocks, self._loose, self._loose_size = 0, [], [], 0
        for entry in entries[known:]:
            encoded = self._entry_bytes(entry)
            self._loose.append(encoded)
            self._loose_size += len(encoded)
            if self._loose_size >= BLOCK_BYTES:
                self._blocks.append(b",".join(self._loose))
                self._loose, self._loose_size = [], 0
        self._entries = entries
        self._forget(entries)

    def _entry_bytes(self, entry: Entry) -> bytes:
        encoded = self._bytes.get(entry)
        if encoded is None:
            self.encodes += 1
            encoded = self._bytes[entry] = dump(self._spelled(entry.item))
        return encoded

    def _spelled(self, item: Item) -> Item:
        """An item as this provider and this model take it."""
        provider = self.provider
        item = spelled(item, with_metadata=provider.is_openai)
        if self._is_plain:
            return item
        if provider.developer_role != "developer" and item.get("role") == "developer":
            item = {**item, "role": provider.developer_role}
        if not provider.send_item_ids and "id" in item:
            item = {key: value for key, value in item.items() if key != "id"}
        if provider.repair_call_arguments and item.get("type") == "function_call" and argument_fault(item):
            self.repaired.append(str(item.get("call_id")))
            item = {**item, "arguments": "{}"}
        return without_detail(item) if self.profile.lite else item

    def _forget(self, entries: tuple[Entry, ...]) -> None:
        """Drop the bytes of entries that a compaction took out, once they are the larger part."""
        if len(self._bytes) > 2 * len(entries) + 64:
            self._bytes = {entry: self._bytes[entry] for entry in entries}

    def _settings(self, prompt: Prompt, metadata: dict[str, str]) -> dict[str, Any]:
        text: dict[str, Any] = {}
        if self.profile.verbosity:
            text["verbosity"] = self.profile.verbosity
        if prompt.output_schema is not None:
            schema = {"type": "json_schema", "strict": True, "schema": prompt.output_schema}
            text["format"] = {**schema, "name": "codex_output_schema"}
        lite, tier = self.profile.lite, self.profile.service_tier
        settings = {
            **({} if lite else {"tools": list(prompt.tools)}),
            "tool_choice": "auto",
            "parallel_tool_calls": prompt.parallel_tool_calls and not lite,
            "reasoning": self._reasoning(),
            "store": False,
            "include": ["reasoning.encrypted_content"],
            **({"service_tier": tier} if tier else {}),
            "prompt_cache_key": metadata["thread_id"],
            **({"text": text} if text else {}),
            **self.provider.extra_body,
        }
        settings["client_metadata"] = metadata
        return {key: value for key, value in settings.items() if key not in self.provider.leave_out}

    def _reasoning(self) -> dict[str, Any]:
        profile = self.profile
        summary = profile.reasoning_summary if profile.reasoning_summary != "none" else None
        told = {
            "effort": profile.reasoning_effort,
            "summary": summary,
            "context": "all_turns" if profile.lite else None,
        }
        return {key: value for key, value in told.items() if value}


def client_metadata(identity: Identity) -> dict[str, str]:
    """The body's `client_metadata`."""
    window = f"{identity.thread_id}:{identity.window_number}"
    turn = {"turn_id": identity.turn_id} if identity.turn_id else {}
    return {
        "session_id": identity.thread_id,
        "thread_id": identity.thread_id,
        "x-codex-window-id": window,
        **turn,
        "x-codex-turn-metadata": dump(_turn_metadata(identity, window)).decode(),
    }


def _turn_metadata(identity: Identity, window: str) -> dict[str, Any]:
    return {
        "session_id": identity.thread_id,
        "thread_id": identity.thread_id,
        "turn_id": identity.turn_id,
        "window_id": window,
        "window_number": identity.window_number,
        "request_kind": identity.request_kind,
    }


def _headers(metadata: dict[str, str]) -> dict[str, str]:
    thread_id = metadata["thread_id"]
    return {
        "x-codex-window-id": metadata["x-codex-window-id"],
        "x-codex-turn-metadata": metadata["x-codex-turn-metadata"],
        "x-client-request-id": thread_id,
        "session-id": thread_id,
        "thread-id": thread_id,
        "originator": "refold",
    }
