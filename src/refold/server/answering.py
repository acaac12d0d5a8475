"""Answering: the events of one answer, and the same as a document: the upstream's own, a compaction, or both.

Rule 1: a streamed answer that has begun ends with an event that ends a response, whatever happens to the upstream.
Rule 2: what a client may go on from is kept before the client is told that it is complete.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from refold.core.chat_completions_answer import End, Response, ended
from refold.core.fragments import SUMMARY_MARK
from refold.core.items import Item, content_parts, user_message
from refold.core.jsonio import dump, is_object, load
from refold.errors import BadModelStream, RequestRefused
from refold.server import faults
from refold.server.aside import aside, size_of
from refold.server.back import Back
from refold.server.blocks import ENDS, Event, event_of
from refold.server.compacting import Compacting, Summary
from refold.server.exchange import Exchange, new_id, output_of, usage_object
from refold.server.incoming import Asked, Given, body_of
from refold.server.metrics import Metrics
from refold.server.plain import Spelled, spelled_for
from refold.server.seal import KeyRing
from refold.server.settings import GatewaySettings
from refold.server.store import ResponseStore
from refold.server.upstream import Answer, Document, Upstream
from refold.server.windows import Sealed, budget_for, fingerprint, kept_of, seal

STEP_SECONDS = 1.0  # between two events that only say that a compaction goes on
BEGIN_SECONDS = 5.0  # a compaction's stream begins then at the latest: what a client hears nothing of, it gives up
log = logging.getLogger("refold.gateway")
FAULTY = ("error", "response.failed")


class Answering:
    """How requests are answered, with what a gateway has. `exchange` holds all that one answer changes."""

    def __init__(
        self, settings: GatewaySettings, keys: KeyRing, upstream: Upstream, store: ResponseStore, metrics: Metrics
    ) -> None:
        self.settings, self.keys, self.upstream, self.store, self.metrics = settings, keys, upstream, store, metrics

    # --- streamed ----------------------------------------------------------------------------------------------

    async def events(self, exchange: Exchange) -> AsyncGenerator[Event]:
        """The events of an answer. Raises RequestRefused only before the first one."""
        flow = self._compacted(exchange) if exchange.asked.compacts or exchange.inline else self._answered(exchange)
        count = 0
        try:
            async with aclosing(flow) as events:
                async for event in events:
                    count += 1
                    yield event
        finally:
            self.metrics.add("refold_gateway_events_total", count)

    async def _compacted(self, exchange: Exchange) -> AsyncGenerator[Event]:
        """A compaction's item, alone or before the answer."""
        shell, item_id, numbers = exchange.shell(), new_id("cmp"), _Numbers()
        begun: Item = {"id": item_id, "type": "compaction", "encrypted_content": ""}
        compacting, goes_on = self._compacting(exchange), {"item_id": item_id, "output_index": 0}
        async with compacting.running() as (work, heard):
            await asyncio.wait({work, heard}, timeout=BEGIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if work.done() and not heard.done():
                _raise_early(work)  # nothing was said: a refusal has a status of its own
            yield numbers.event("response.created", response=shell)
            yield numbers.event("response.in_progress", response=shell)
            yield numbers.event("response.output_item.added", output_index=0, item=begun)
            yield numbers.event("response.compaction.compacting", **goes_on)
            while not (await asyncio.wait({work}, timeout=STEP_SECONDS))[0]:
                yield numbers.event("response.compaction.compacting", **goes_on)
            try:
                summary = work.result()
            except RequestRefused as error:
                yield numbers.numbered(faults.failed(shell, error))
                return
        item = await self._sealed(exchange, summary, item_id)
        yield numbers.event("response.output_item.done", output_index=0, item=item)
        if exchange.asked.compacts:
            response = _completed(shell, item, summary)
            await self._keep_compacted(exchange, response, item)
            yield numbers.event("response.completed", response=response)
            return
        async with aclosing(self._answered(exchange, item, summary, numbers.next)) as events:
            async for event in events:
                yield event

    async def _answered(
        self, exchange: Exchange, item: Item | None = None, summary: Summary | None = None, number: int = 0
    ) -> AsyncGenerator[Event]:
        """The upstream's answer, behind a compaction where there was one."""
        said, body = await self._asked(exchange, summary)
        back = self._back(exchange, said, item, number)
        seen, is_changed = _Seen(exchange.shell), back.is_needed
        try:
            async with self.upstream.stream(body, exchange.caller, exchange.sent) as answer:
                self._begun(exchange, answer)
                async for heard in answer.events:
                    event = faults.without(heard, exchange.caller.secrets) if heard.type in FAULTY else heard
                    if item is not None and event.type in ("response.created", "response.in_progress"):
                        continue  # the client was told
                    fault = self._overflow_in(event) if event.type in FAULTY else None
                    if fault is not None:
                        raise fault
                    seen.take(event)
                    if event.type in ENDS:
                        await self._keep_streamed(exchange, event, back, item, seen)
                    if not is_changed:
                        yield event
                        continue
                    for told in back.events(event._replace(more=False)):  # the next one may not be told
                        yield told
        except (RequestRefused, BadModelStream) as error:
            if isinstance(error, BadModelStream):
                self.metrics.add("refold_gateway_broken_streams_total")
                fault = RequestRefused(f"The upstream broke off: {error}", status=502, code=faults.FAILED)
            else:
                fault = error
            number = back.number if is_changed else seen.count
            if not seen.count and item is None:
                if fault.code != faults.OVERFLOW and not isinstance(error, BadModelStream):
                    raise fault from None
                yield _numbered({"type": "response.created", "response": back.document(seen.shell)}, number)
                number += 1
            output = back.document({**seen.shell, "output": seen.output()})
            yield _numbered(faults.failed(output, fault, output["output"]), number)

    def _overflow_in(self, event: Event) -> RequestRefused | None:
        """The fault of an event that says in the upstream's own words that the input does not fit."""
        message = event.message()
        response = message.get("response")
        told = response.get("error") if is_object(response) else None
        if is_object(told) and told.get("code") == faults.OVERFLOW:
            return None
        return faults.overflow_in(message, self.settings.context_window)

    # --- as documents ------------------------------------------------------------------------------------------

    async def document(self, exchange: Exchange) -> Document:
        """The answer as one document. Raises RequestRefused."""
        item, summary = None, None
        if exchange.asked.compacts or exchange.inline:
            summary = await self._compacting(exchange).run()
            item = await self._sealed(exchange, summary, new_id("cmp"))
        if exchange.asked.compacts:
            assert item is not None and summary is not None
            response = _completed(exchange.shell(), item, summary)
            await self._keep_compacted(exchange, response, item)
            return Document(200, {}, dump(response))
        said, body = await self._asked(exchange, summary)
        answer = await self.upstream.document(body, exchange.caller, exchange.sent)
        self._begun(exchange, answer)
        back = self._back(exchange, said, item, 0, own_id=False)
        looks_right = answer.body[:100].lstrip().startswith(b"{")
        if looks_right and not back.is_needed and not exchange.asked.store:
            return answer
        try:
            response, _ = load(answer.body)
        except ValueError:
            response = None
        if not is_object(response):
            raise faults.unreadable()
        told = back.document(response) if back.is_needed else response
        await self._keep(exchange, told, item)
        return Document(answer.status, answer.headers, dump(told) if back.is_needed else answer.body)

    async def compaction(self, exchange: Exchange) -> Document:
        """What `/responses/compact` answers: what people said, and one item for the rest. Raises RequestRefused."""
        summary = await self._compacting(exchange).run()
        item = await self._sealed(exchange, summary, new_id("cmp"))
        kept = [_as_output(given.item) for given in await self._kept(exchange)]
        told = {
            "id": exchange.response_id,
            "object": "response.compaction",
            "created_at": exchange.created_at,
            "output": [*kept, item],
            "usage": usage_object(summary.usage),
        }
        return Document(200, {}, dump(told))

    # --- what is asked -----------------------------------------------------------------------------------------

    def _compacting(self, exchange: Exchange) -> Compacting:
        told = exchange.told[: len(exchange.told) - self._tail(exchange)]
        return Compacting(
            exchange.asked,
            told,
            settings=self.settings,
            upstream=self.upstream,
            caller=exchange.caller,
            headers=exchange.sent,
        )

    def _tail(self, exchange: Exchange) -> int:
        """How many of the last items are answered, not compacted; they are told as they are."""
        return len(exchange.window) - exchange.inline if exchange.inline else 0

    async def _kept(self, exchange: Exchange) -> list[Given]:
        """What stays readable of the items that are compacted."""
        if exchange.kept is None:  # told the upstream, and then held
            items, budget = exchange.window[: exchange.inline or None], self._budget(exchange)
            exchange.kept = await aside(size_of(items), lambda: kept_of(items, budget))
        return exchange.kept

    def _budget(self, exchange: Exchange) -> int:
        return budget_for(self.settings.context_window, exchange.asked.threshold if exchange.inline else None)

    async def _asked(self, exchange: Exchange, summary: Summary | None) -> tuple[Spelled, bytes]:
        """The upstream's request: the body as it came where nothing in it is to be changed."""
        asked, items = exchange.asked, exchange.told
        if summary is not None:
            items = (
                *await self._kept(exchange),
                Given.of(user_message(SUMMARY_MARK + summary.text)),
                *exchange.window[exchange.inline :],
            )
        said, body = await aside(size_of(items), lambda: self._spelled(asked, items))
        exchange.left_out = said.left_out
        if said.left_out:
            self.metrics.add("refold_gateway_left_out_total")
        return said, body

    def _spelled(self, asked: Asked, items: Sequence[Given]) -> tuple[Spelled, bytes]:
        said = spelled_for(asked, items, self.settings)
        same = said.keys == asked.keys and said.items == tuple(given.raw for given in asked.items)
        return said, asked.whole if same else body_of(said.keys, said.items)

    def _begun(self, exchange: Exchange, answer: Answer | Document) -> None:
        """What is known when the upstream has answered."""
        exchange.headers = answer.headers
        exchange.left_out += answer.left_out
        if answer.left_out:
            self.metrics.add("refold_gateway_left_out_total")

    def _back(self, exchange: Exchange, said: Spelled, item: Item | None, number: int, *, own_id: bool = True) -> Back:
        told: dict[str, Any] = {}
        if exchange.asked.previous is not None:
            told["previous_response_id"] = exchange.asked.previous
        if said.called:
            told["tools"] = exchange.asked.value("tools") or []
        if item is not None and own_id:
            told["id"] = exchange.response_id
        return Back(said.called, told, () if item is None else (item,), number)

    # --- what is kept ------------------------------------------------------------------------------------------

    async def _sealed(self, exchange: Exchange, summary: Summary, item_id: str) -> Item:
        """The compaction item."""
        compacted, tail = exchange.window, exchange.window[exchange.inline or len(exchange.window) :]
        way = "inline" if exchange.inline else "asked"
        self.metrics.add("refold_gateway_compactions_total", way=way, method=summary.method)
        sealed = Sealed(
            text=summary.text,
            method=summary.method,
            model=exchange.asked.model,
            at=exchange.created_at,
            count=exchange.inline or len(compacted),
            sha256="" if exchange.inline else await aside(size_of(compacted), lambda: fingerprint(compacted)),
            is_inline=bool(exchange.inline),
            kept=self._budget(exchange),
            tail=len(tail),
            tail_sha256=fingerprint(tail) if tail else "",
        )
        return {
            "id": item_id,
            "type": "compaction",
            "encrypted_content": seal(sealed, self.keys, exchange.caller.tenant),
        }

    async def _keep_compacted(self, exchange: Exchange, response: Response, item: Item) -> None:
        """The window that begins with a compaction that was asked for."""
        await self._store(exchange, response, [item], await self._kept(exchange))

    async def _keep_streamed(
        self, exchange: Exchange, event: Event, back: Back, item: Item | None, seen: _Seen
    ) -> None:
        """What a streamed answer ended with; some servers do not repeat its items there."""
        response = event.message().get("response")
        if not is_object(response):
            return
        if not output_of(response):
            response = {**response, "output": seen.output()}
        await self._keep(exchange, back.document(response) if back.is_needed else response, item)

    async def keep(self, exchange: Exchange, response: dict[str, Any]) -> None:
        """Hold, and store, a response that the gateway gave by itself."""
        await self._keep(exchange, response, None)

    async def _keep(self, exchange: Exchange, response: dict[str, Any], item: Item | None) -> None:
        output = output_of(response)
        if item is None:
            await self._store(exchange, response, output, None)
            return
        # as a client that sends all has it: the item behind what it was made before
        window = [*await self._kept(exchange), *exchange.window[exchange.inline :], Given.of(item)]
        await self._store(exchange, response, output[1:], window)

    async def _store(
        self, exchange: Exchange, response: dict[str, Any], output: Sequence[Item], window: Sequence[Given] | None
    ) -> None:
        stored = exchange.keep(response, output, window=window)
        if stored is None:
            return
        try:
            await self.store.save(exchange.caller.tenant, stored)
        except sqlite3.Error as error:  # an answer is not lost because a disk is full
            self.metrics.add("refold_gateway_unsaved_total")
            log.error("a response was not stored: %s", error)


class _Seen:
    """What of a streamed answer was passed on, for the day when its end does not come. Mutable."""

    def __init__(self, shell: Callable[[], Response]) -> None:
        self.count = 0
        self._own = shell  # made of the whole request, and rarely needed
        self._created: Event | None = None
        self._done: list[Event] = []

    def take(self, event: Event) -> None:
        if not event.data:
            return
        self.count += 1
        if event.type == "response.created":
            self._created = event
        elif event.type == "response.output_item.done":
            self._done.append(event)

    @property
    def shell(self) -> Response:
        """The response object that the upstream began with, else the gateway's own."""
        response = self._created.message().get("response") if self._created else None
        return response if is_object(response) else self._own()

    def output(self) -> list[Item]:
        """The items that are finished."""
        items = (event.message().get("item") for event in self._done)
        return [item for item in items if is_object(item)]


class _Numbers:
    """Numbers the gateway's own events. Mutable: it counts."""

    def __init__(self) -> None:
        self.next = 0

    def event(self, kind: str, **fields: Any) -> Event:
        return self.numbered({"type": kind, **fields})

    def numbered(self, message: dict[str, Any]) -> Event:
        self.next += 1
        return _numbered(message, self.next - 1)


def _numbered(message: dict[str, Any], number: int) -> Event:
    return event_of({**message, "sequence_number": number})


def _raise_early(work: asyncio.Task[Summary]) -> None:
    """Raise what ended a compaction of which nothing was said yet, save an overflow: that is said in the stream."""
    error = work.exception()
    if error is not None and not (isinstance(error, RequestRefused) and error.code == faults.OVERFLOW):
        raise error


def _as_output(item: Item) -> Item:
    """A message of the input as an output item has it: with an id, a status and a list of parts."""
    name = item.get("id") or new_id("msg")
    return {**item, "id": name, "status": "completed", "content": content_parts(item)}


def _completed(shell: Response, item: Item, summary: Summary) -> Response:
    return ended(shell, End("completed"), [item], usage_object(summary.usage))
