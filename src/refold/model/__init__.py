"""EDGE, network: models. A Model takes a Request's bytes and gives back what the provider streams.

Public names: Model, HasSecondWay and HasCompactEndpoint (protocols), the model events, EndpointAnswer, ResponsesModel
(HTTP + SSE, or a WebSocket), ChatModel (Chat Completions), ScriptedModel (no network).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from refold.core.items import Item
from refold.core.profile import Profile, Provider
from refold.core.usage import Usage
from refold.core.wire import Request

if TYPE_CHECKING:
    from refold.model.chat import ChatModel
    from refold.model.responses import ResponsesModel
    from refold.model.scripted import ScriptedModel

__all__ = [
    "ArgumentsDelta",
    "ChatModel",
    "Completed",
    "EndpointAnswer",
    "FellBack",
    "HasCompactEndpoint",
    "HasSecondWay",
    "ItemDone",
    "ItemStarted",
    "Model",
    "ModelEvent",
    "ReasoningDelta",
    "ResponseStarted",
    "ResponsesModel",
    "ScriptedModel",
    "TextDelta",
]


class ResponseStarted(msgspec.Struct, frozen=True):
    """The provider accepted the request (`response.created`)."""

    response_id: str | None = None


class ItemStarted(msgspec.Struct, frozen=True):
    """An output item began (`response.output_item.added`); a preview, not yet a fact."""

    item: Item


class TextDelta(msgspec.Struct, frozen=True):
    """More text of the assistant message `item_id`."""

    item_id: str
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    """More text of the reasoning summary `item_id`."""

    item_id: str
    text: str


class ItemDone(msgspec.Struct, frozen=True):
    """One finished output item (`response.output_item.done`)."""

    item: Item


class Completed(msgspec.Struct, frozen=True):
    """The response is complete; always the last event. `end_turn` None means the provider did not say."""

    response_id: str | None = None
    usage: Usage | None = None
    end_turn: bool | None = None


class ArgumentsDelta(msgspec.Struct, frozen=True):
    """More of what a call asks for: its arguments, or a custom tool's input."""

    item_id: str
    text: str


class FellBack(msgspec.Struct, frozen=True):
    """The provider is asked in its second way from now on; `text` is one line that a person should see."""

    text: str


ModelEvent: TypeAlias = (
    ResponseStarted | ItemStarted | TextDelta | ReasoningDelta | ArgumentsDelta | ItemDone | Completed | FellBack
)


class Model(Protocol):
    """The thing that answers.

    `sample` streams events and ends with exactly one Completed, or raises a ModelError:
    ModelUnavailable (retryable, with the provider's wait), BadModelStream (the stream broke), ContextWindowExceeded,
    ModelRefused, ResponseIncomplete. It never retries by itself; the session decides.
    Closing the iterator early closes the connection.
    """

    @property
    def profile(self) -> Profile: ...

    @property
    def provider(self) -> Provider: ...

    def sample(self, request: Request) -> AsyncGenerator[ModelEvent]: ...

    def join(self) -> None:
        """One more session uses this model."""
        ...

    async def close(self) -> None:
        """One session less uses it; with the last one its connections are closed. It can be used again."""
        ...


@runtime_checkable
class HasSecondWay(Protocol):
    """A Model that can reach its provider in a second way."""

    def fall_back(self, thread_id: str) -> bool:
        """Take the second way for this thread from now on: its first one's retries are used up.

        False: there is none, it is taken already, or it would not help against the error of the last sample.
        """
        ...


class EndpointAnswer(msgspec.Struct, frozen=True):
    """What `/responses/compact` gave: the items that may take the history's place, as they came, and what it cost."""

    items: tuple[Item, ...]
    response_id: str | None = None
    usage: Usage | None = None


@runtime_checkable
class HasCompactEndpoint(Protocol):
    """A Model whose provider compacts a history at `/responses/compact` (spec §6.2)."""

    async def compact(self, request: Request) -> EndpointAnswer:
        """Ask once, with what `Wire.compact_request` made.

        Raises what `Model.sample` raises: ModelRefused with the status where there is no such endpoint (404, 405, 501)
        or the key is not taken (401, 403), ModelUnavailable that is not retryable when there was no whole answer within
        four times `stream_idle_timeout_ms`; and CompactionFailed for an answer that is no list of items.
        """
        ...


def __getattr__(name: str) -> Any:
    if name == "ChatModel":
        from refold.model.chat import ChatModel

        return ChatModel
    if name == "ResponsesModel":
        from refold.model.responses import ResponsesModel

        return ResponsesModel
    if name == "ScriptedModel":
        from refold.model.scripted import ScriptedModel

        return ScriptedModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
