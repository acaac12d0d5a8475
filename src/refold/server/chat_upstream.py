"""ChatUpstream: an upstream that has Chat Completions only; requests and answers are translated whole."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from refold.core.chat_completions import ChatRequest, chat_request
from refold.core.chat_completions_stream import DONE, ChatDecoder, response_of
from refold.core.jsonio import dump, is_object, load
from refold.errors import BadModelStream, ModelRefused
from refold.model.events import CLOSED_EARLY, IDLE_TIMEOUT
from refold.model.sse import SseDecoder
from refold.server.blocks import Event, event_of
from refold.server.callers import Caller
from refold.server.exchange import new_id
from refold.server.faults import of_model, unreadable
from refold.server.settings import GatewaySettings, Secrets
from refold.server.upstream import Answer, Document, Upstream, passed_on

if TYPE_CHECKING:
    import httpx2

    from refold.model.responses import ResponsesModel

RESPONSES, CHAT = "/responses", "/chat/completions"


class ChatUpstream(Upstream):
    """A provider with Chat Completions. It answers what an Upstream answers."""

    def __init__(self, settings: GatewaySettings, secrets: Secrets) -> None:
        super().__init__(settings, secrets)
        self._chat_url = self.url.copy_with(path=self.url.path.removesuffix(RESPONSES) + CHAT)

    async def document(self, body: bytes, caller: Caller, headers: Mapping[str, str]) -> Document:
        asked = self._translated(body)
        async with self._answer("POST", self._chat_url, dump(asked.body), caller, {}, streamed=False) as response:
            body = self._checked(await self._whole(response), response, caller)
            try:
                said, _ = load(body)
            except ValueError:
                said = None
            if not is_object(said):
                raise unreadable()
            told = response_of(said, asked, response_id=new_id("resp"), created_at=int(time.time()))
            answer = self._checked(dump(told), response, caller)
            return Document(200, passed_on(response.headers, caller.secrets), answer, asked.left_out)

    @asynccontextmanager
    async def stream(self, body: bytes, caller: Caller, headers: Mapping[str, str]) -> AsyncIterator[Answer]:
        asked = self._translated(body)
        async with (
            self._answer("POST", self._chat_url, dump(asked.body), caller, {}, streamed=True) as response,
            aclosing(_events(response, asked)) as events,
        ):
            yield Answer(passed_on(response.headers, caller.secrets), events, asked.left_out)

    def _new_model(self) -> ResponsesModel:
        from refold.model.chat import ChatModel

        return ChatModel(self.settings.profile(""), self.provider)

    def _translated(self, body: bytes) -> ChatRequest:
        asked, _ = load(body)
        try:
            return chat_request(asked if is_object(asked) else {}, self.settings.chat)
        except ModelRefused as error:
            raise of_model(error, self.settings.context_window) from None


async def _events(response: httpx2.Response, asked: ChatRequest) -> AsyncGenerator[Event]:
    """The answer's chunks as events of a Responses stream. Raises BadModelStream where it breaks."""
    import httpx2

    decoder = ChatDecoder(asked, response_id=new_id("resp"), created_at=int(time.time()))
    lines = SseDecoder()
    try:
        async for chunk in response.aiter_bytes():
            for _, data in lines.feed(chunk):
                for message in decoder.feed_data(data):
                    yield event_of(message)
                if decoder.is_ended:
                    return
    except httpx2.RequestError as error:
        if not decoder.is_finished:
            raise BadModelStream(IDLE_TIMEOUT if isinstance(error, httpx2.TimeoutException) else CLOSED_EARLY) from None
    if not decoder.is_finished:
        raise BadModelStream(CLOSED_EARLY)
    for message in decoder.feed_data(DONE):
        yield event_of(message)
