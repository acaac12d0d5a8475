"""Scripted answers: what a provider will say, written down beforehand, and a Model that says it without a network.

A Reply is played in two ways that behave alike: by ScriptedModel here, and over real HTTP by
`refold.testing.ResponsesServer`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from refold.core.items import ID_PREFIX, OUTPUT_TYPE_OF, Item, message, with_id
from refold.core.profile import Profile, Provider
from refold.core.usage import Usage, usage_from_api, usage_to_api
from refold.core.wire import Request
from refold.errors import BadModelStream, ConfigError, ModelUnavailable
from refold.model import Completed, EndpointAnswer, ModelEvent
from refold.model.compact import answer_from, patience_for, unanswered
from refold.model.events import CLOSED_EARLY, IDLE_TIMEOUT, http_error, read_event

DELTAS = 3  # pieces that a text is streamed in
NO_REPLY_LEFT = "script_exhausted"  # the error code of a request that the script has no reply for
PLAIN_USAGE = Usage(input_tokens=100, output_tokens=10, total_tokens=110)  # of a reply that does not care

Cut: TypeAlias = int | Literal["request", "partial_item", "items"]


class Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scripted answer; the defaults complete at once, with no items and no usage told.

    Items without an `id` or `call_id` are given one when they are played. Times are seconds. Where the connection is
    cut: "request" = the request was read and nothing is answered; "partial_item" = in the middle of the first item;
    "items" = after the last item, before the end of the response; a number = after that many events.
    """

    items: tuple[Item, ...] = ()
    usage: Usage | None = None
    end_turn: bool | None = None
    response_id: str | None = None
    fail: dict[str, Any] | None = None  # `response.failed` with this error object; {} = without one
    incomplete: str | None = None  # `response.incomplete` for this reason
    error: dict[str, Any] | None = None  # a bare `error` event with these fields
    status: int = 200  # 400 and above: no stream, but `body` as JSON
    body: Any = None
    headers: dict[str, str] = {}
    cut_after: Cut | None = None
    delay: float = 0.0  # before anything is answered
    pace: float = 0.0  # between two events
    stall: float = 0.0  # silence before the last event, or before the cut
    linger: float = 0.0  # the connection stays open and silent after the last event
    noise: tuple[str, ...] = ()  # raw lines sent before every event: comments, garbage (over HTTP only)

    @classmethod
    def from_json(cls, step: Any) -> Reply:
        """A reply as scripts write it: the field names above; `usage` as {input, output, cached, reasoning, total};
        `drop` ("mid", "no_completed") and `close` for a cut. Raises ConfigError naming what is not understood."""
        if step is None:  # a request whose answer was not recorded
            return cls()
        if not isinstance(step, dict):
            raise ConfigError("reply", f"must be an object, not {type(step).__name__}")
        fields = {key: value for key, value in step.items() if key != "marker"}  # tells a recorder when to kill
        if "drop" in fields:
            drop = fields.pop("drop")
            fields["cut_after"] = {"mid": "partial_item", "no_completed": "items"}.get(drop, drop)
        if fields.pop("close", False):
            fields["cut_after"] = "items"
        if "usage" in fields:
            fields["usage"] = _written_usage(fields["usage"])
        try:
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError as error:
            raise ConfigError("reply", str(error)) from None


def read_script(document: Any) -> list[Reply]:
    """The replies of a JSON script: a list of replies, {"steps": […]}, or a recorded scenario with its `runs`."""
    if isinstance(document, dict) and "runs" in document:
        exchanges = [exchange for run in document["runs"] for exchange in run["exchanges"]]
        return [Reply.from_json(exchange.get("response")) for exchange in exchanges]
    steps = document.get("steps") if isinstance(document, dict) else document
    if not isinstance(steps, list):
        raise ConfigError("script", 'must be a list of replies, {"steps": […]} or a scenario with "runs"')
    return [Reply.from_json(step) for step in steps]


def _written_usage(value: Any) -> dict[str, int] | None:
    """Usage in a script's short words or in the API's, as the fields of Usage."""
    if not isinstance(value, dict):
        return None
    if "input_tokens" in value:
        return msgspec.structs.asdict(usage_from_api(value) or Usage())
    inputs, outputs = value.get("input", 0), value.get("output", 0)
    return {
        "input_tokens": inputs,
        "cached_input_tokens": value.get("cached", 0),
        "output_tokens": outputs,
        "reasoning_output_tokens": value.get("reasoning", 0),
        "total_tokens": value.get("total", inputs + outputs),
    }


# --- a script is asked once for each request -----------------------------------------------------------

Step: TypeAlias = Reply | str | Callable[[Any], "Reply | str"]  # a string is one assistant message


class Script:
    """Replies in order, or one callable for all requests. Mutable: it knows how far it is.

    A callable is given the request: the decoded JSON body by ScriptedModel, a LoggedRequest by ResponsesServer.
    """

    def __init__(self, steps: Sequence[Step] | Callable[[Any], Reply | str]) -> None:
        self._steps: tuple[Step, ...] | Callable[[Any], Reply | str] = steps if callable(steps) else tuple(steps)
        self.used = 0  # how many requests were answered

    def next(self, request: Any) -> Reply:
        """The reply to this request; a refusal that says so when none is left."""
        self.used += 1
        if callable(self._steps):
            return _reply(self._steps(request))
        if self.used > len(self._steps):
            text = f"the script has {len(self._steps)} replies; this is request {self.used}"
            return Reply(status=400, body={"error": {"code": NO_REPLY_LEFT, "message": text}})
        step = self._steps[self.used - 1]
        return _reply(step(request) if callable(step) else step)


def _reply(step: Reply | str) -> Reply:
    if isinstance(step, str):
        return Reply(items=(message("assistant", [step]),), usage=PLAIN_USAGE)
    return step


# --- the events that a reply becomes -------------------------------------------------------------------


def wire_events(reply: Reply, serial: int) -> list[dict[str, Any]]:
    """Every event of a reply, numbered, up to where it is cut. `serial` makes the ids of this response unique."""
    response = {"id": reply.response_id or f"resp_{serial}", "object": "response", "created_at": 0, "output": []}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**response, "status": "in_progress"}},
        {"type": "response.in_progress", "response": {**response, "status": "in_progress"}},
    ]
    items = [_identified(item, serial, index) for index, item in enumerate(reply.items)]
    ends: list[int] = []
    for index, item in enumerate(items):
        events += _item_events(item, index)
        ends.append(len(events))
    events.append(_last_event(reply, {**response, "output": items}))
    events = events[: _cut_position(reply.cut_after, events, ends)]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _cut_position(cut: Cut | None, events: list[dict[str, Any]], ends: list[int]) -> int:
    """How many events are sent."""
    match cut:
        case None:
            return len(events)
        case "request":
            return 0
        case "items":
            return len(events) - 1
        case "partial_item":  # all but the event that finishes the first item
            return ends[0] - 1 if ends else len(events) - 1
        case _:
            return cut


def _identified(item: Item, serial: int, index: int) -> Item:
    """The item with the ids that a provider would have given it; an id written down, even null, is kept."""
    kind = item.get("type", "")
    if "id" not in item:
        item = with_id(item, f"{ID_PREFIX.get(kind, 'item')}_{serial}_{index}")
    if kind in OUTPUT_TYPE_OF and "call_id" not in item:
        item = {**item, "call_id": f"call_{serial}_{index}"}
    return item


def _item_events(item: Item, index: int) -> list[dict[str, Any]]:
    at = {"item_id": item.get("id"), "output_index": index}
    match item:
        case {"type": "message", "content": list(parts)}:
            begun = {**item, "status": "in_progress", "content": []}
            middle = [event for number, part in enumerate(parts) for event in _part_events(part, at, number)]
        case {"type": "function_call", "arguments": str(text)}:
            begun = {**item, "status": "in_progress", "arguments": ""}
            middle = _text_events("response.function_call_arguments", at, "arguments", text)
        case {"type": "custom_tool_call", "input": str(text)}:
            begun = {**item, "status": "in_progress", "input": ""}
            middle = _text_events("response.custom_tool_call_input", at, "input", text)
        case {"type": "reasoning", "summary": list(parts)}:
            begun = {**item, "summary": []}
            middle = [event for number, part in enumerate(parts) for event in _summary_events(part, at, number)]
        case _:
            begun, middle = item, []
    added = {"type": "response.output_item.added", "output_index": index, "item": begun}
    return [added, *middle, {"type": "response.output_item.done", "output_index": index, "item": item}]


def _part_events(part: dict[str, Any], at: dict[str, Any], number: int) -> list[dict[str, Any]]:
    at = {**at, "content_index": number}
    text = part.get("text", "")
    return [
        {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
        *_text_events("response.output_text", at, "text", text),
        {"type": "response.content_part.done", **at, "part": part},
    ]


def _summary_events(part: dict[str, Any], at: dict[str, Any], number: int) -> list[dict[str, Any]]:
    at = {**at, "summary_index": number}
    return [
        {"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}},
        *_text_events("response.reasoning_summary_text", at, "text", part.get("text", "")),
        {"type": "response.reasoning_summary_part.done", **at, "part": part},
    ]


def _text_events(name: str, at: dict[str, Any], key: str, text: str) -> list[dict[str, Any]]:
    """`name`.delta in a few pieces, then `name`.done with the whole text."""
    size = max(1, math.ceil(len(text) / DELTAS))
    deltas = [{"type": f"{name}.delta", **at, "delta": text[i : i + size]} for i in range(0, len(text), size)]
    return [*deltas, {"type": f"{name}.done", **at, key: text}]


def _last_event(reply: Reply, response: dict[str, Any]) -> dict[str, Any]:
    if reply.error is not None:
        return {"type": "error", **reply.error}
    if reply.fail is not None:
        return {"type": "response.failed", "response": {**response, "status": "failed", "error": reply.fail or None}}
    response = {**response, "usage": usage_to_api(reply.usage)}
    if reply.incomplete is not None:
        details = {"reason": reply.incomplete}
        ended = {**response, "status": "incomplete", "incomplete_details": details}
        return {"type": "response.incomplete", "response": ended}
    if reply.end_turn is not None:
        response["end_turn"] = reply.end_turn
    return {"type": "response.completed", "response": {**response, "status": "completed", "error": None}}


def document(reply: Reply, serial: int, *, compact: bool) -> tuple[int, bytes]:
    """Status and JSON body of a reply without a stream: an error, a whole response, or (`compact`) a compacted input.

    A `body` that is written down is said as it is.
    """
    if reply.status >= 300:
        return reply.status, b"" if reply.body is None else msgspec.json.encode(reply.body)
    if reply.fail is not None or reply.error is not None:
        return 400, msgspec.json.encode({"error": reply.fail or reply.error})
    if reply.body is not None:
        return reply.status, msgspec.json.encode(reply.body)
    response = wire_events(reply, serial)[-1]["response"]
    return reply.status, msgspec.json.encode({**response, "object": "response.compaction"} if compact else response)


# --- the model -------------------------------------------------------------------------------------------


class ScriptedModel:
    """A Model that plays a script. Mutable: it keeps every request's decoded JSON body in `requests`.

    Failures are the errors that ResponsesModel raises for the same reply over HTTP. A request that the script has no
    reply for is refused (ModelRefused, code NO_REPLY_LEFT).
    """

    def __init__(
        self,
        replies: Sequence[Step] | Callable[[Any], Reply | str],
        *,
        profile: Profile | None = None,
        provider: Provider | None = None,
    ) -> None:
        self.profile = profile or Profile(slug="scripted")
        self.provider = provider or Provider(id="scripted", name="scripted", base_url="scripted://", env_key=None)
        self.requests: list[Any] = []
        self._script = Script(replies)

    async def sample(self, request: Request) -> AsyncGenerator[ModelEvent]:
        body = msgspec.json.decode(request.body())
        self.requests.append(body)
        reply = self._script.next(body)
        await self._silence(reply.delay)
        if reply.cut_after == "request":
            raise ModelUnavailable(f"{self.provider.base_url} closed the connection unanswered", request_level=True)
        if reply.status >= 300:
            headers = {name.lower(): value for name, value in reply.headers.items()}
            body = msgspec.json.encode(reply.body)
            raise http_error(reply.status, headers, body, provider=self.provider, now=time.time())
        events = wire_events(reply, self._script.used)
        for number, wire_event in enumerate(events):
            if number:
                await self._silence(reply.pace)
            if number == len(events) - 1 and reply.cut_after is None:
                await self._silence(reply.stall)
            event = read_event(wire_event, now=time.time())
            if event is not None:
                yield event
            if isinstance(event, Completed):
                return
        await self._silence(reply.stall)
        raise BadModelStream(CLOSED_EARLY)

    async def compact(self, request: Request) -> EndpointAnswer:
        """The next reply as `/responses/compact` would say it; see `HasCompactEndpoint`."""
        body = msgspec.json.decode(request.body())
        self.requests.append(body)
        reply = self._script.next(body)
        patience = patience_for(self.provider)
        await asyncio.sleep(min(reply.delay, patience))
        if reply.delay > patience:
            raise unanswered(self.provider)
        if reply.cut_after is not None:
            raise ModelUnavailable(f"{self.provider.base_url} closed the connection unanswered", request_level=True)
        status, said = document(reply, self._script.used, compact=True)
        headers = {name.lower(): value for name, value in reply.headers.items()}
        return answer_from(status, headers, said, self.provider)

    def join(self) -> None:
        """Nothing to count: there are no connections."""

    async def close(self) -> None:
        """Nothing to release."""

    async def _silence(self, seconds: float) -> None:
        """Wait, at most as long as the provider's idle time-out allows."""
        patience = self.provider.stream_idle_timeout_ms / 1000
        if seconds:
            await asyncio.sleep(min(seconds, patience))
        if seconds > patience:
            raise BadModelStream(IDLE_TIMEOUT)
