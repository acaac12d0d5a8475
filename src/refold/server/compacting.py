"""Compacting: a history in, the text that takes its place out: by the upstream's model, or without any.

model: the history item by item, then the handoff text · flattened: the history as one text · outline: no model.
Rule 1: a summary that does not fit is asked for with less; one that is none is asked for once more, as one text.
Rule 2: where the model gives none, an outline takes its place, if the settings say so. That an upstream is not there,
is full or refuses the key is told the client: it may ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from refold.core.compaction import local
from refold.core.compaction.outline import OUTLINE_PART, OUTLINE_TOKENS, outline
from refold.core.compaction.replacement import NO_SUMMARY, fitting
from refold.core.history import Entry, entry
from refold.core.items import Item
from refold.core.jsonio import dump, load
from refold.core.profile import FALLBACK_CONTEXT_WINDOW
from refold.core.prompt import Prompt
from refold.core.tokens import utf8_len
from refold.core.truncate import tokens_for
from refold.core.usage import Usage
from refold.core.wire import Request
from refold.errors import (
    CompactionFailed,
    ContextWindowExceeded,
    ModelError,
    ModelRefused,
    RequestRefused,
    ResponseIncomplete,
)
from refold.model import Completed, ItemDone
from refold.server.aside import aside, size_of
from refold.server.callers import Caller
from refold.server.faults import of_model
from refold.server.incoming import Asked, Given, body_of
from refold.server.plain import spelled_for
from refold.server.settings import GatewaySettings, Method
from refold.server.upstream import Upstream

MOST_OVERFLOWS = 6  # requests that did not fit; each leaves out a good part
ANSWER_SHARE = 10  # of the window, kept free for the summary
GUESS_SHARE = 4  # of the history, left out where nobody tells the window
TRANSCRIPT_PERCENT = 60  # of the window that a transcript may take
LEAST_BUDGET = 500  # tokens: a shorter transcript says too little
ASKED_OF_A_MODEL = ("model", "instructions", "reasoning", "service_tier", "prompt_cache_key")


class Summary(msgspec.Struct, frozen=True):
    """What takes a history's place, how it was made, and what that cost."""

    text: str
    method: Method
    usage: Usage


class Compacting:
    """One compaction. Mutable: it knows what was tried.

    `told`: the items as the model is told them, summaries of older compactions among them.
    """

    def __init__(
        self,
        asked: Asked,
        told: Sequence[Given],
        *,
        settings: GatewaySettings,
        upstream: Upstream,
        caller: Caller,
        headers: Mapping[str, str],
    ) -> None:
        self.asked, self.settings, self.upstream, self.caller = asked, settings, upstream, caller
        self._headers = headers
        self.model = settings.model_for(asked.model)
        self.profile = settings.profile(self.model)
        self.history: list[Entry] = []
        self._told, self._size = told, size_of(told)
        self._window = settings.context_window
        self._usage = Usage()
        self._heard: asyncio.Future[None] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[asyncio.Task[Summary], asyncio.Future[None]]]:
        """`run` as a task, for whoever tells a client meanwhile that it goes on, and a future that is done when the
        upstream has begun to answer. The task ends with the `with` block."""
        self._heard = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self.run())
        try:
            yield task, self._heard
        finally:
            task.cancel()
            await asyncio.wait({task})
            _ = task.cancelled() or task.exception()  # taken: who has left asks no more

    async def run(self) -> Summary:
        """Compact. Raises RequestRefused."""
        self.history = await aside(self._size, self._entries)
        if self.settings.compaction == "outline" or not self.history:
            return await self._outline()
        flat = self.settings.compaction == "flattened"
        try:
            asking = local.Asking(budget=self._budget() if flat else None)
            return await self._ask(asking)
        except (CompactionFailed, ContextWindowExceeded, ResponseIncomplete, ModelRefused) as error:
            is_ours = not isinstance(error, ModelRefused) or error.status in (400, 413, 422)
            if not (is_ours and self.settings.outline_when_it_fails):
                raise self._refused(error) from None
            return await self._outline()
        except ModelError as error:
            raise self._refused(error) from None

    def _entries(self) -> list[Entry]:
        return [entry(given.item, f"input:{number}") for number, given in enumerate(self._told)]

    def _refused(self, error: ModelError | CompactionFailed) -> RequestRefused:
        if isinstance(error, CompactionFailed):
            return RequestRefused(str(error), status=502, code="compaction_failed", kind="server_error")
        address = self.upstream.provider.base_url
        return of_model(error, self._window, self.caller.secrets, own_key=self.upstream.owns_key, address=address)

    # --- without a model ---

    async def _outline(self) -> Summary:
        budget = fitting(OUTLINE_TOKENS, self.settings.context_window, OUTLINE_PART)
        text = await asyncio.to_thread(outline, self.history, budget) or NO_SUMMARY
        read, wrote = sum(e.tokens for e in self.history), tokens_for(utf8_len(text))
        own = Usage(input_tokens=read, output_tokens=wrote, total_tokens=read + wrote)
        return Summary(text, "outline", self._usage if self._usage.total_tokens else own)

    # --- by the model ---

    async def _ask(self, asking: local.Asking) -> Summary:
        """Ask until there is a summary. Raises what ends it."""
        from refold.core.compaction.accepting import judged

        overflows, unfit = 0, 0
        while True:
            prompt, request = await aside(self._size, partial(self._request, asking))
            try:
                output = await self._sample(request)
            except ContextWindowExceeded as error:
                overflows += 1
                shorter = self._shorter(asking, prompt, error.limit)
                if shorter is None or overflows >= MOST_OVERFLOWS:
                    raise
                asking = shorter
                continue
            text = judged(output, prompt)
            if isinstance(text, str):
                method: Method = "model" if asking.budget is None else "flattened"
                return Summary(text, method, self._usage)
            unfit += 1
            if unfit > 1 or asking.budget is not None:
                raise CompactionFailed(text.why)
            asking = local.Asking(budget=self._budget())

    def _request(self, asking: local.Asking) -> tuple[Prompt, Request]:
        prompt, _ = local.prompt_of(self.history, self.profile, asking, base_instructions=None)
        return prompt, self.upstream.request(self._body(prompt), self.caller, self._headers)

    async def _sample(self, request: Request) -> list[Item]:
        """The items of one answer. Raises ModelError."""
        output: list[Item] = []
        async with aclosing(self.upstream.model.sample(request)) as events:
            async for event in events:
                if self._heard is not None and not self._heard.done():
                    self._heard.set_result(None)
                if isinstance(event, Completed) and event.usage is not None:
                    self._usage = self._usage + event.usage
                if isinstance(event, ItemDone):
                    output.append(event.item)
        return output

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        """The request for a summary, as this upstream takes it. No tools: whoever is asked to write should not act."""
        keys = {key: dump(self.asked.value(key)) for key in self.asked.keys if key in ASKED_OF_A_MODEL}
        if prompt.base_instructions is not None:
            keys["instructions"] = msgspec.json.encode(prompt.base_instructions)
        keys |= {"input": b"[]", "stream": b"true", "store": b"false"}
        asked = msgspec.structs.replace(self.asked, keys=keys)
        said = spelled_for(asked, [Given.of(item) for item in prompt.input], self.settings)
        return load(body_of(said.keys, said.items))[0]

    def _shorter(self, asking: local.Asking, prompt: Prompt, told: int | None) -> local.Asking | None:
        """What is asked next after a request that did not fit; None where nothing is left to leave out."""
        self._window = told or self._window
        if asking.budget is not None:
            budget = min(asking.budget // 2, self._budget())
            return msgspec.structs.replace(asking, budget=budget) if budget >= LEAST_BUDGET else None
        over = prompt.tokens // GUESS_SHARE
        if self._window is not None:
            over = max(over, prompt.tokens - self._window + self._window // ANSWER_SHARE)
        kept: list[Entry] = local.without_oldest(self.history, asking.dropped)
        if not asking.without_media and any(map(local.holds_media, kept)):
            return msgspec.structs.replace(asking, without_media=True)
        left = local.without_oldest(kept, local.count_for(kept, over)) if kept else []
        if not left:
            return local.Asking(budget=self._budget())
        return msgspec.structs.replace(asking, dropped=len(self.history) - len(left))

    def _budget(self) -> int:
        return (self._window or FALLBACK_CONTEXT_WINDOW) * TRANSCRIPT_PERCENT // 100
