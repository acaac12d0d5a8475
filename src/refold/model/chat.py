"""ChatModel: a model behind `POST {base_url}/chat/completions`, for servers that have no Responses API.

Rule 1: what is sent is the Responses request, translated whole each time; what comes back is events of that API, read
as those are. Nothing above this module knows the difference.
Rule 2: nothing is read after `[DONE]`, as after `response.completed`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, cast

from refold.core.chat_completions import ChatRequest, chat_request
from refold.core.chat_completions_answer import STREAM_CUT, error_in
from refold.core.chat_completions_stream import DONE, ChatDecoder
from refold.core.jsonio import dump, is_object, load
from refold.core.wire import Request
from refold.errors import BadModelStream, ModelError, ModelRefused
from refold.model import Completed, EndpointAnswer, ModelEvent
from refold.model.events import IDLE_TIMEOUT, read_event
from refold.model.responses import ResponsesModel
from refold.model.sse import SseDecoder

if TYPE_CHECKING:
    import httpx2

RESPONSES, CHAT = "/responses", "/chat/completions"


class ChatModel(ResponsesModel):
    """A model of a Chat Completions server: a provider with `wire_api` "chat". `provider.chat` says how it is asked.

    What it raises is what ResponsesModel raises. `left_out`: what the last request held that such a server cannot be
    told, one line each.
    """

    left_out: tuple[str, ...] = ()

    def sample(self, request: Request) -> AsyncGenerator[ModelEvent]:
        """Stream the events of one request; see `Model` for what it raises."""
        return self._over_chat(request)

    async def compact(self, request: Request) -> EndpointAnswer:
        """Refused: there is no such endpoint beside Chat Completions."""
        raise ModelRefused(f"{self.provider.base_url} has Chat Completions only: it does not compact", status=404)

    async def _over_chat(self, request: Request) -> AsyncGenerator[ModelEvent]:
        from httpx2 import ReadTimeout, RequestError

        chat, message = translated(request, self)
        self.left_out = chat.left_out
        response = await self._open(message)
        chunks = _bytes(response)
        decoder = ChatDecoder(chat, response_id=f"resp_{uuid.uuid4().hex}", created_at=int(time.time()))
        left_in_order = False
        try:
            lines = SseDecoder()
            async for chunk in chunks:
                for _, data in lines.feed(chunk):
                    for event in _events(decoder, data):
                        if isinstance(event, Completed):
                            left_in_order = True
                            self._leftovers.append((chunks, response))
                        yield event
                    if left_in_order:
                        return
            if not decoder.is_finished:
                raise BadModelStream(STREAM_CUT)
            for event in _events(decoder, DONE):
                yield event
        except RequestError as error:
            raise BadModelStream(IDLE_TIMEOUT if isinstance(error, ReadTimeout) else STREAM_CUT) from error
        finally:
            if not left_in_order:
                await chunks.aclose()
                await response.aclose()

    def _ready_client(self) -> httpx2.AsyncClient:
        client, url = super()._ready_client(), self._url
        if url is not None and url.path.endswith(RESPONSES):
            self._url = url.copy_with(path=url.path.removesuffix(RESPONSES) + CHAT)
        return client

    async def _refusal(self, response: httpx2.Response) -> ModelError:
        error = await super()._refusal(response)
        error.args = tuple(str(told).replace("Responses API", "Chat Completions API") for told in error.args)
        return error


def translated(request: Request, model: ResponsesModel) -> tuple[ChatRequest, Request]:
    """A Responses request for a Chat Completions server, and its bytes. Raises ModelRefused for one that is no object.

    The roles are already those that the provider takes.
    """
    asked, _ = load(request.body())
    if not is_object(asked):
        raise ModelRefused("the request is no JSON object", status=400)
    chat = chat_request(asked, model.provider.chat, modalities=model.profile.input_modalities)
    return chat, Request(head=dump(chat.body), parts=(), tail=b"", items=0, headers=request.headers)


def _events(decoder: ChatDecoder, data: str) -> Iterator[ModelEvent]:
    """What one server-sent event says. Raises the ModelError of an error, or of an end that is no good one."""
    if '"error"' in data:
        chunk = _object(data)
        error = error_in(chunk)
        if error is not None:
            read_event({"type": "error", "error": error}, now=time.time())
    for told in decoder.feed_data(data):
        event = read_event(told, now=time.time())
        if event is not None:
            yield event


def _object(data: str) -> dict[str, object]:
    try:
        value, _ = load(data.encode("utf-8", "replace"))
    except ValueError:
        return {}
    return value if is_object(value) else {}


def _bytes(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    body = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
    return cast("AsyncGenerator[bytes, None]", body)
