"""ChatDecoder: chunks of a Chat Completions stream → the events of a Responses stream, in their order.

Rule 1: one text is open at a time; another kind of text, or a call, closes it. Calls are open until the end, because
their pieces may come in turns.
Rule 2: what an answer holds does not depend on how it was cut into chunks; a text of white space alone is none.
Rule 3: a call that the end cut off is never told as done: somebody would run half of what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from refold.core.chat_completions import ChatRequest
from refold.core.chat_completions_answer import (
    FAILED,
    NO_ANSWER,
    STREAM_CUT,
    End,
    Response,
    ended,
    ending,
    error_in,
    response_error,
    response_shell,
    usage_of,
)
from refold.core.chat_completions_calls import Calls, OpenCall
from refold.core.chat_completions_tools import call_item
from refold.core.items import ID_PREFIX, Item, Part
from refold.core.jsonio import is_list, is_object, load

Event: TypeAlias = dict[str, Any]  # one event of a Responses stream

DONE = "[DONE]"
# kind of a part → its text's events, its own events, the key that counts it, the key of its text
_SPOKEN = {
    "output_text": ("response.output_text", "response.content_part", "content_index", "text"),
    "refusal": ("response.refusal", "response.content_part", "content_index", "refusal"),
    "summary_text": ("response.reasoning_summary_text", "response.reasoning_summary_part", "summary_index", "text"),
    "reasoning_text": ("response.reasoning_text", "response.content_part", "content_index", "text"),
}
_EXTRA: dict[str, dict[str, Any]] = {"output_text": {"annotations": [], "logprobs": []}}
_IN_MESSAGE = ("output_text", "refusal")


class _OpenText:
    """A message or a reasoning item that is being said. Mutable: it grows with every chunk."""

    def __init__(self, index: int, item_id: str, kind: str) -> None:
        self.index = index
        self.item_id = item_id
        self.kind = kind  # of the part that is being said
        self.pieces: list[str] = []
        self.parts: list[Part] = []  # finished

    def item(self, status: str | None) -> Item:
        if self.kind in _IN_MESSAGE:
            said: Item = {"type": "message", "id": self.item_id, "status": status}
            return {**said, "role": "assistant", "content": [*self.parts]}
        said = {"type": "reasoning", "id": self.item_id, "summary": []}
        key = "summary" if self.kind == "summary_text" else "content"
        return {**said, key: [*self.parts]}

    def part(self, text: str) -> Part:
        return {"type": self.kind, _SPOKEN[self.kind][3]: text, **_EXTRA.get(self.kind, {})}


class ChatDecoder:
    """Reads one answer: `feed` each chunk, `end` it once; each gives the events that are due, numbered.

    `response_id` must be new: the ids of the items are made of it. `created_at`: seconds since 1970. Mutable, like the
    stream that it reads.
    """

    def __init__(self, request: ChatRequest, *, response_id: str, created_at: int) -> None:
        self.response: Response = response_shell(request.asked, response_id, created_at)
        self.is_ended = False
        self.is_finished = False  # the server said why it stopped: whatever comes now, the answer is whole
        self._tools = request.tools
        self._thought = "summary_text" if request.settings.reasoning_to == "summary" else "reasoning_text"
        self._own = response_id.partition("_")[2] or response_id
        self._events: list[Event] = []
        self._number = 0
        self._begun = False
        self._output: list[Item | None] = []  # by output_index; None is not finished
        self._text: _OpenText | None = None
        self._held: tuple[str, str] = ("", "")  # kind and white space that a text may begin with
        self._calls = Calls()
        self._usage: dict[str, Any] | None = None
        self._reason: str | None = None

    def feed_data(self, data: str) -> list[Event]:
        """The events of one server-sent event's data; what is no JSON object says nothing, `[DONE]` ends it."""
        if data.strip() == DONE:
            return self.end(done=True)
        try:
            return self.feed(load(data.encode("utf-8", "replace"))[0])
        except ValueError:
            return []

    def feed(self, chunk: Any) -> list[Event]:
        """The events of one `chat.completion.chunk`, or of a whole `chat.completion`."""
        if self.is_ended or not is_object(chunk):
            return []
        self._begin()
        error = error_in(chunk)
        if error is not None:
            self._fail(response_error(error))
            return self._told()
        self._usage = usage_of(chunk) or self._usage
        choices = chunk.get("choices")
        for choice in choices if is_list(choices) else []:
            if is_object(choice) and choice.get("index") in (0, None):  # there is one answer
                self._take(choice)
        return self._told()

    def end(self, *, done: bool) -> list[Event]:
        """The last events. `done`: the server said so; else the stream just ended, which fails unless it had finished.

        Ending twice says nothing more.
        """
        if self.is_ended:
            return []
        self._begin()
        if not (done or self.is_finished):
            self._fail({"code": FAILED, "message": STREAM_CUT})
            return self._told()
        self._finish(ending(self._reason))
        return self._told()

    # --- events ----------------------------------------------------------------------------------------------

    def _say(self, kind: str, **fields: Any) -> None:
        self._events.append({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1

    def _told(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._say("response.created", response=self.response)
            self._say("response.in_progress", response=self.response)

    def _fail(self, error: dict[str, Any]) -> None:
        self._last(End("failed", error=error))

    def _finish(self, end: End) -> None:
        """Close everything, in its order, and the response."""
        if end.status == "failed":
            self._last(end)
            return
        self._close_text(end.status)
        for call in self._calls.announced:
            self._close_call(call, end.status)
        self._last(end)

    def _last(self, end: End) -> None:
        self.is_ended = True
        self.response = ended(self.response, end, [item for item in self._output if item], self._usage)
        self._say(f"response.{end.status}", response=self.response)

    def _added(self, item: Item) -> None:
        self._say("response.output_item.added", output_index=len(self._output), item=item)
        self._output.append(None)

    # --- chunks ----------------------------------------------------------------------------------------------

    def _take(self, choice: dict[str, Any]) -> None:
        said = choice.get("delta") or choice.get("message")
        if is_object(said):
            for kind, text in _texts(said):
                self._add_text(self._thought if kind == "thought" else kind, text)
            is_whole, calls = said is choice.get("message"), said.get("tool_calls")
            for number, piece in enumerate(calls if is_list(calls) else []):
                if is_object(piece):
                    self._take_call({"index": number, **piece} if is_whole else piece)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._reason, self.is_finished = reason, True

    def _add_text(self, kind: str, text: str) -> None:
        open_text = self._text
        if open_text is None or open_text.kind != kind:
            held, space = self._held
            text = space + text if held == kind else text
            if not text.strip():
                self._held = (kind, text)
                return
            open_text = self._open_text(kind)
        open_text.pieces.append(text)
        where, _, count, _ = _SPOKEN[kind]
        at = {"item_id": open_text.item_id, "output_index": open_text.index, count: len(open_text.parts)}
        self._say(f"{where}.delta", **at, delta=text, **_logprobs(kind))

    def _open_text(self, kind: str) -> _OpenText:
        """A part of this kind, in the message that is open where it belongs there."""
        self._held = ("", "")
        text = self._text
        if text is not None and kind in _IN_MESSAGE and text.kind in _IN_MESSAGE:
            self._close_part(text)
            text.kind = kind
        else:
            self._close_text("completed")
            prefix = "msg" if kind in _IN_MESSAGE else "rs"
            text = _OpenText(len(self._output), f"{prefix}_{self._own}_{len(self._output)}", kind)
            self._added(text.item("in_progress"))
            self._text = text
        _, part, count, _ = _SPOKEN[kind]
        at = {"item_id": text.item_id, "output_index": text.index, count: len(text.parts)}
        self._say(f"{part}.added", **at, part=text.part(""))
        return text

    def _close_part(self, text: _OpenText) -> None:
        where, part, count, key = _SPOKEN[text.kind]
        at = {"item_id": text.item_id, "output_index": text.index, count: len(text.parts)}
        whole, text.pieces = "".join(text.pieces), []
        self._say(f"{where}.done", **at, **{key: whole}, **_logprobs(text.kind))
        text.parts.append(text.part(whole))
        self._say(f"{part}.done", **at, part=text.parts[-1])

    def _close_text(self, status: str) -> None:
        text, self._text, self._held = self._text, None, ("", "")
        if text is not None:
            self._close_part(text)
            self._output[text.index] = item = text.item(status)
            self._say("response.output_item.done", output_index=text.index, item=item)

    # --- calls -----------------------------------------------------------------------------------------------

    def _take_call(self, piece: dict[str, Any]) -> None:
        call, text = self._calls.take(piece)
        if call.index is None and call.name:
            self._announce(call)
            text = call.arguments
        if call.index is not None and text and call.called.kind == "function_call":
            self._say_arguments(call, text)

    def _announce(self, call: OpenCall) -> None:
        self._close_text("completed")
        call.called = self._tools.meaning(call.name)
        call.index = len(self._output)
        call.item_id = f"{ID_PREFIX[call.called.kind]}_{self._own}_{call.index}"
        call.call_id = self._calls.free_id(call, f"call_{self._own}_{call.index}")
        self._added(call_item(call.called, call.item_id, call.call_id, "", "in_progress"))

    def _say_arguments(self, call: OpenCall, text: str) -> None:
        at = {"item_id": call.item_id, "output_index": call.index}
        self._say("response.function_call_arguments.delta", **at, delta=text)

    def _close_call(self, call: OpenCall, status: str) -> None:
        assert call.index is not None
        at = {"item_id": call.item_id, "output_index": call.index}
        arguments = call.arguments
        is_function = call.called.kind == "function_call"
        if is_function and not arguments.strip() and status == "completed":
            arguments = "{}"  # no arguments are an empty object, which clients read
            self._say_arguments(call, arguments)
        item = call_item(call.called, call.item_id, call.call_id, arguments, status)
        self._output[call.index] = item
        if status != "completed":
            return
        if is_function:
            self._say("response.function_call_arguments.done", **at, name=call.called.name, arguments=arguments)
        elif "input" in item:
            if item["input"]:
                self._say("response.custom_tool_call_input.delta", **at, delta=item["input"])
            self._say("response.custom_tool_call_input.done", **at, input=item["input"])
        self._say("response.output_item.done", output_index=call.index, item=item)


def response_of(document: Any, request: ChatRequest, *, response_id: str, created_at: int) -> Response:
    """The Responses document of a `chat.completion` document. One that holds an error, or no answer, has failed."""
    decoder = ChatDecoder(request, response_id=response_id, created_at=created_at)
    has_answer = is_object(document) and is_list(document.get("choices")) and bool(document["choices"])
    is_error = is_object(document) and error_in(document) is not None
    decoder.feed(document if has_answer or is_error else {"error": NO_ANSWER})
    decoder.end(done=True)
    return decoder.response


def _logprobs(kind: str) -> dict[str, Any]:
    return {"logprobs": []} if kind == "output_text" else {}


def _texts(said: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a delta or a message says, thoughts first: ("thought" or the kind of the part, text)."""
    thought = next((text for key in ("reasoning_content", "reasoning") if (text := said.get(key))), None)
    if isinstance(thought, str):
        yield "thought", thought
    content, refusal = said.get("content"), said.get("refusal")
    if isinstance(content, str) and content:
        yield "output_text", content
    for part in content if is_list(content) else []:  # Mistral
        match part:
            case {"type": "thinking", "thinking": thoughts} if is_list(thoughts):
                for inner in thoughts:
                    if is_object(inner) and isinstance(inner.get("text"), str):
                        yield "thought", inner["text"]
            case {"text": str(text)}:
                yield "output_text", text
            case _:
                pass
    if isinstance(refusal, str) and refusal:
        yield "refusal", refusal
