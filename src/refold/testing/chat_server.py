"""ChatServer: a scripted provider on loopback that has Chat Completions only.

The replies are those of ResponsesServer; they are said as chunks. What a chunk cannot say (hosted tools' items, a
summary beside a thought) is not said.
Rule 1: every POST to a path ending in `/chat/completions` uses one reply of the script.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from refold.core.items import Item, content_parts, message_text
from refold.core.usage import Usage
from refold.model.scripted import Reply
from refold.testing.connection import Connection, LoggedRequest
from refold.testing.server import ResponsesServer

PIECES = 3  # that a text or the arguments of a call are streamed in
FINISH_OF = {"max_output_tokens": "length"}
_HALF_CHUNK = b'data: {"id":"chatcmpl_1","object":"chat.completion.chunk","choices":[{"index":0,"del'


class ChatServer(ResponsesServer):
    """`with ChatServer([text_reply("hi")]) as server: … server.provider() …`; see ResponsesServer.

    A reply whose `body` is a list is a stream of exactly these: objects are chunks, texts the data of an event. A
    stream asked for without `stream_options.include_usage` tells no usage.
    """

    def provider(self, **changes: Any) -> Any:
        """A Provider with `wire_api` "chat" that stands for this server."""
        return super().provider(**{"wire_api": "chat", **changes})

    def _next_reply(self, request: LoggedRequest) -> tuple[Reply, int]:
        if not request.endpoint.endswith("/chat/completions"):
            return Reply(status=404, body={"error": {"message": f"nothing at {request.endpoint}"}}), 0
        if request.method != "POST":
            return Reply(status=405, body={"error": {"message": f"{request.method} is not for here"}}), 0
        try:
            return self._script.next(request), self._script.used
        except Exception as error:
            self._failure = error
            return Reply(status=500, body={"error": {"message": f"the script failed: {error!r}"}}), self._script.used

    async def _answer(self, connection: Connection, request: LoggedRequest, reply: Reply, serial: int) -> bool:
        try:
            await connection.silence(reply.delay)
            streamed = reply.status < 300 and request.wants_stream
            if reply.cut_after == "request" or (reply.cut_after is not None and not streamed):
                return False
            if streamed:
                return await _stream(connection, reply, _said(reply, serial, request.json))
            status, body = _document(reply, serial)
            headers = {"content-type": "application/json", "content-length": str(len(body)), **reply.headers}
            connection.start(status, headers.items())
            connection.push(body)
            connection.end()
            await connection.flush()
        except ConnectionError:
            self._note(self.abandoned, request)
            raise
        return True


def _document(reply: Reply, serial: int) -> tuple[int, bytes]:
    """Status and body of an answer that is no stream."""
    if reply.status >= 300 or reply.body is not None:
        return reply.status, msgspec.json.encode(reply.body) if reply.body is not None else b""
    return reply.status, msgspec.json.encode(chat_document(reply, serial))


def _said(reply: Reply, serial: int, asked: Any) -> list[Any]:
    """What the data of each event is, in order."""
    if isinstance(reply.body, list):
        return reply.body
    options = asked.get("stream_options") if isinstance(asked, dict) else None
    wants_usage = isinstance(options, dict) and options.get("include_usage") is True
    return [*chat_chunks(reply, serial, wants_usage=wants_usage)]


async def _stream(connection: Connection, reply: Reply, said: list[Any]) -> bool:
    """Send the chunks; False when the stream is to be cut."""
    cut = reply.cut_after
    count = len(said) if cut is None else cut if isinstance(cut, int) else _before_end(said)
    headers = {"content-type": "text/event-stream", "cache-control": "no-cache", **reply.headers}
    connection.start(reply.status, headers.items())
    for number, data in enumerate(said[:count]):
        await connection.silence(reply.pace if number else 0)
        await connection.silence(reply.stall if number == len(said) - 1 else 0)
        noise = "".join(f"{line}\n\n" for line in reply.noise)
        text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        connection.push(f"{noise}data: {text}\n\n".encode())
    if cut is not None:
        if cut == "partial_item":
            connection.push(_HALF_CHUNK)
        await connection.silence(reply.stall)
        await connection.flush()
        return False
    await connection.silence(reply.linger)
    connection.end()
    await connection.flush()
    return True


def _before_end(said: list[Any]) -> int:
    """How many chunks come before the one that finishes the answer."""
    finishing = (n for n, data in enumerate(said) if '"finish_reason":"' in msgspec.json.encode(data).decode())
    return next(finishing, len(said))


# --- a reply in chunks -----------------------------------------------------------------------------------


def chat_chunks(reply: Reply, serial: int, *, wants_usage: bool = True) -> list[Any]:
    """The data of every event: chunks, then `[DONE]`; or an error in their place. `serial` makes ids unique."""
    head = {"id": f"chatcmpl_{serial}", "object": "chat.completion.chunk", "created": 0, "model": "scripted"}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    calls = 0
    for item in reply.items:
        deltas += _deltas(item, calls, f"call_{serial}_{calls}")
        calls += _is_call(item)
    said: list[Any] = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if reply.fail is not None or reply.error is not None:
        return [*said, {"error": reply.fail or reply.error or {"message": "failed"}}]
    said.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(reply, calls)}]})
    if reply.usage is not None and wants_usage:
        said.append({**head, "choices": [], "usage": chat_usage(reply.usage)})
    return [*said, "[DONE]"]


def chat_document(reply: Reply, serial: int) -> dict[str, Any]:
    """The `chat.completion` that says the same."""
    calls = [item for item in reply.items if _is_call(item)]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(map(_text, reply.items)) or None}
    if thought := "".join(map(_thought, reply.items)):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [_call(call, f"call_{serial}_{number}") for number, call in enumerate(calls)]
    return {
        "id": f"chatcmpl_{serial}",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(reply, len(calls))}],
        **({} if reply.usage is None else {"usage": chat_usage(reply.usage)}),
    }


def chat_usage(usage: Usage) -> dict[str, Any]:
    """Usage as Chat Completions tells it."""
    return {
        "prompt_tokens": usage.input_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens": usage.output_tokens,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_output_tokens},
        "total_tokens": usage.total_tokens,
    }


def _finish(reply: Reply, calls: int) -> str:
    if reply.incomplete is not None:
        return FINISH_OF.get(reply.incomplete, reply.incomplete)
    return "tool_calls" if calls else "stop"


def _is_call(item: Item) -> bool:
    return item.get("type") in ("function_call", "custom_tool_call")


def _deltas(item: Item, number: int, made_id: str) -> list[dict[str, Any]]:
    """An item in a few pieces."""
    if not _is_call(item):
        spoken = [("content", piece) for piece in _pieces(_text(item))]
        return [{key: piece} for key, piece in [*(("reasoning_content", p) for p in _pieces(_thought(item))), *spoken]]
    call = _call(item, made_id)
    function = call["function"]
    begun = {**call, "index": number, "function": {**function, "arguments": ""}}
    rest = ({"index": number, "function": {"arguments": piece}} for piece in _pieces(function["arguments"]))
    return [{"tool_calls": [piece]} for piece in (begun, *rest)]


def _call(item: Item, made_id: str) -> dict[str, Any]:
    """A call as Chat Completions has it: a custom tool is a function of one text."""
    arguments = item.get("arguments", "")
    if item["type"] == "custom_tool_call":
        arguments = msgspec.json.encode({"input": item.get("input", "")}).decode()
    function = {"name": item.get("namespace", "") + item["name"], "arguments": arguments}
    return {"id": item.get("call_id") or made_id, "type": "function", "function": function}


def _text(item: Item) -> str:
    return message_text(item) if item.get("type") == "message" else ""


def _thought(item: Item) -> str:
    if item.get("type") != "reasoning":
        return ""
    return message_text(item) if content_parts(item) else message_text({"content": item.get("summary")})


def _pieces(text: str) -> list[str]:
    size = max(1, math.ceil(len(text) / PIECES))
    return [text[at : at + size] for at in range(0, len(text), size)]
