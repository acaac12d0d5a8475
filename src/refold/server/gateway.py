"""Gateway: everything that one process of `refold serve` has, and what it does with a request's body.

Mutable: it counts, and holds connections to the upstream and to the store. It belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from refold.core.compaction.shadow import SEALED_TYPES
from refold.core.jsonio import dump, is_list, is_object, load
from refold.core.profile import FALLBACK_CONTEXT_WINDOW
from refold.errors import RequestRefused
from refold.server.answering import Answering
from refold.server.aside import aside, size_of
from refold.server.callers import Admission, Caller
from refold.server.counting import counted, estimated
from refold.server.exchange import Exchange
from refold.server.incoming import Asked, Given, read_request, refused
from refold.server.metrics import Metrics
from refold.server.settings import GatewaySettings, Secrets
from refold.server.store import ResponseStore
from refold.server.upstream import Document, upstream_for
from refold.server.windows import opened, unanswered

REFERENCE = "item_reference"
CONNECTIONS = 4  # WebSockets for each request that there is room for: most of them are idle
NO_LIST = (404, 405, 501)  # of an upstream that has no list of models


class Gateway:
    """One process's gateway. `close` when done."""

    def __init__(self, settings: GatewaySettings, secrets: Secrets) -> None:
        """Raises ConfigError."""
        self.settings, self.secrets = settings, secrets
        self.metrics = Metrics()
        self.admission = Admission(settings)
        self.connections = Admission(settings, times=CONNECTIONS, what="connections")
        self.store = ResponseStore(settings.store, settings.retention_days)
        self.upstream = upstream_for(settings, secrets)
        self.answering = Answering(settings, secrets.keys, self.upstream, self.store, self.metrics)

    async def close(self) -> None:
        await self.upstream.close()
        await self.store.close()

    async def read(
        self,
        body: bytes,
        caller: Caller,
        sent: Mapping[str, str],
        *,
        held: tuple[str, tuple[Given, ...]] | None = None,
    ) -> Exchange:
        """A request for `/responses`. `held`: a response that the connection knows, and the window after it.

        Raises RequestRefused for one that cannot be answered.
        """
        asked = await aside(len(body), lambda: read_request(body))
        return await self.exchange(asked, caller, sent, held=held)

    async def exchange(
        self,
        asked: Asked,
        caller: Caller,
        sent: Mapping[str, str],
        *,
        held: tuple[str, tuple[Given, ...]] | None = None,
    ) -> Exchange:
        self._refuse_references(asked)
        before: Sequence[Given] = ()
        is_held = held is not None and held[0] == asked.previous
        if held is not None and is_held:
            before = held[1]
        elif asked.previous is not None:
            before = await self.store.window(caller.tenant, asked.previous)
        window = (*before, *asked.items)

        def read() -> tuple[Sequence[Given], int]:
            told = self.opened(window, caller)
            return told, 0 if asked.compacts else self._inline(asked, window, told)

        told, inline = await aside(size_of(window), read)
        is_chained = asked.previous is not None and not is_held
        return Exchange(asked, caller, sent, window=window, told=told, is_chained=is_chained, inline=inline)

    def opened(self, window: Sequence[Given], caller: Caller) -> Sequence[Given]:
        """The items with summaries in place of compactions. Raises RequestRefused."""
        keeps = self.settings.takes_all or "compaction" in self.settings.accepts
        limit = self.settings.context_window
        return opened(window, self.secrets.keys, caller.tenant, window=limit, keeps=keeps)

    def _refuse_references(self, asked: Asked) -> None:
        """Raises RequestRefused for an item that only names one, where the upstream does not know the name."""
        if self.settings.takes_all or REFERENCE in self.settings.accepts:
            return
        for number, given in enumerate(asked.items):
            if given.item.get("type") == REFERENCE:
                text = f"input[{number}] refers to an item that this gateway does not keep: send the item itself"
                raise refused(f"input[{number}]", text, "unsupported_value")

    def _inline(self, asked: Asked, window: Sequence[Given], told: Sequence[Given]) -> int:
        """How many of the items are compacted before the rest is answered; 0: none."""
        if asked.threshold is None or estimated(asked, told) <= asked.threshold:
            return 0
        most = min(asked.threshold, self.settings.context_window or FALLBACK_CONTEXT_WINDOW) // 2
        count = len(window) - unanswered(window, most)
        return count if any(map(_is_work, window[:count])) else 0

    # --- beside answers ----------------------------------------------------------------------------------------

    async def compact(self, body: bytes, caller: Caller, sent: Mapping[str, str]) -> Document:
        """What `/responses/compact` answers. Raises RequestRefused."""
        asked = await aside(len(body), lambda: read_request(body, takes_trigger=False))
        asked = msgspec.structs.replace(asked, compacts=True, threshold=None)
        return await self.answering.compaction(await self.exchange(asked, caller, sent))

    async def input_tokens(self, body: bytes, caller: Caller) -> Document:
        """What `/responses/input_tokens` answers. Raises RequestRefused."""
        asked = await aside(len(body), lambda: read_request(body, needs_model=False))
        exchange = await self.exchange(asked, caller, {})
        tokens = await asyncio.to_thread(counted, asked, exchange.told)
        return Document(200, {}, dump({"object": "response.input_tokens", "input_tokens": tokens}))

    async def stored(self, response_id: str, caller: Caller) -> Document:
        """A response by its id. Raises RequestRefused (404)."""
        return Document(200, {}, await self.store.document(caller.tenant, response_id))

    async def delete(self, response_id: str, caller: Caller) -> Document:
        """Raises RequestRefused (404)."""
        await self.store.delete(caller.tenant, response_id)
        return Document(200, {}, dump({"id": response_id, "object": "response", "deleted": True}))

    async def models(self, caller: Caller, query: str) -> Document:
        """The upstream's list of models, and the names that `model_map` adds. Raises RequestRefused."""
        named = [name for name in self.settings.model_map if name != "*"]
        try:
            answer = await self.upstream.models(caller, query)
        except RequestRefused as error:
            if error.status not in NO_LIST:
                raise
            return Document(200, {}, dump({"object": "list", "data": [_model(name) for name in named]}))
        if not named:
            return answer
        try:
            told, _ = load(answer.body)
        except ValueError:
            told = None
        data = told.get("data") if is_object(told) else None
        if not is_object(told) or not is_list(data):
            return answer
        known = {one.get("id") for one in data if is_object(one)}
        more = [_model(name) for name in named if name not in known]
        return Document(200, answer.headers, dump({**told, "data": [*data, *more]}))


def _is_work(given: Given) -> bool:
    """Whether a compaction would make an item shorter: what people and instructions say it keeps."""
    kept = given.item.get("type") == "message" and given.item.get("role") != "assistant"
    return not kept and given.item.get("type") not in SEALED_TYPES


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "refold"}
