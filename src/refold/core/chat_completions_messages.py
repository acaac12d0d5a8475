"""Messages of a Chat Completions request: what Responses items say, in the turns that such a server takes.

Rule 1: the calls of one answer are one assistant message, and their outputs follow it at once, in the calls' order.
Rule 2: every call is answered, every output has its call, every id is used once: core/pairing.py sees to that first.
Rule 3: what cannot be said is left out and told, one line each; nothing of the text of a message is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from refold.core.chat_completions_settings import ChatSettings
from refold.core.chat_completions_tools import Called, ToolSet, arguments_of, flat_name
from refold.core.history import entry
from refold.core.items import OUTPUT_TYPE_OF, Item, Part, argument_fault, content_parts, is_call, is_output, spelled
from refold.core.jsonio import dump, is_list, is_object, without_lone_surrogates
from refold.core.pairing import ABORTED, View, view_of
from refold.core.templates import template

Message: TypeAlias = dict[str, Any]  # one message of a Chat Completions request
Content: TypeAlias = str | list[Part]

DETAILS = ("auto", "low", "high")  # of an image; the Responses API has more
INSTRUCTING = ("system", "developer")
BETWEEN = "\n\n"  # the texts of a message that are joined to one


class Messages(msgspec.Struct, frozen=True):
    """The messages, and what the items hold besides, one line each."""

    messages: list[Message]
    left_out: tuple[str, ...] = ()


class _Answer:
    """What the model said between two things that it was told. Mutable: it grows with each item."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thought: list[str] = []
        self.calls: list[Item] = []
        self.is_answered = False  # an output came: what the model says next is another answer


def messages_of(
    items: Sequence[Item], tools: ToolSet, settings: ChatSettings, *, instructions: str = "", modalities: Sequence[str]
) -> Messages:
    """The messages that say what `instructions` and the items say; `modalities` are those that the model takes."""
    try:
        view = view_of((entry(spelled(item), "") for item in items), modalities)
        return _written(view, tools, settings, instructions)
    except UnicodeEncodeError:  # half a surrogate pair, which what `load` reads does not hold
        view = view_of((entry(spelled(without_lone_surrogates(item)), "") for item in items), modalities)
        return _written(view, tools, settings, instructions)


def _written(view: View, tools: ToolSet, settings: ChatSettings, instructions: str) -> Messages:
    sendable = [e.item for e in view.sendable()]
    writer = _Writer(tools, settings, {item["call_id"]: item for item in sendable if _is_answer(item)})
    if instructions:
        writer.say("developer", instructions)
    made_up = {e.item["call_id"] for e in view.unanswered}  # their outputs end no answer: the model never saw them
    for item in sendable:
        if not (_is_answer(item) and item["call_id"] in made_up):
            writer.take(item)
    writer.end_answer()
    for orphan in view.orphans:
        writer.lose(f"output {orphan.item.get('call_id')!r}: its call is not there")
    messages = _in_front(writer.messages) if settings.system_place == "front" else writer.messages
    return Messages(_alternating(messages) if settings.alternate else messages, tuple(writer.left_out))


class _Writer:
    """Writes one message after the other. Mutable: it holds the answer that is not ended yet."""

    def __init__(self, tools: ToolSet, settings: ChatSettings, outputs: dict[str, Item]) -> None:
        self.messages: list[Message] = []
        self.left_out: dict[str, None] = {}
        self._names = {called: name for name, called in tools.called.items()}
        self._settings = settings
        self._outputs = outputs
        self._answer = _Answer()

    def take(self, item: Item) -> None:
        match item:
            case {"type": "message", "role": "assistant"}:
                self._open().texts.append("".join(self._texts(item)))
            case {"type": "message" | "agent_message"}:
                self.say(str(item.get("role", "user")), self._content(item))
            case {"type": "reasoning"}:
                self._open().thought += _thought(item)
                if item.get("encrypted_content"):
                    self.lose("encrypted reasoning: only its provider can read it")
            case _ if is_call(item):
                self._open().calls.append(item)
            case _ if is_output(item):
                asked = item.get("call_id")
                self._answer.is_answered |= any(call["call_id"] == asked for call in self._answer.calls)
            case _:
                why = (
                    "it has no call_id" if str(item.get("type")) in OUTPUT_TYPE_OF else "only the Responses API has it"
                )
                self.lose(f"item {item.get('type')!r}: {why}")

    def say(self, role: str, content: Content) -> None:
        """A message of somebody else than the model."""
        self.end_answer()
        said = self._settings.developer_role if role in INSTRUCTING else "user"
        self.messages.append({"role": said, "content": content})

    def lose(self, what: str) -> None:
        """Remember something that is not sent."""
        self.left_out[what] = None

    def end_answer(self) -> None:
        """Write the answer down, and the outputs of its calls."""
        answer, self._answer = self._answer, _Answer()
        text = BETWEEN.join(filter(None, answer.texts))
        if not text and not answer.calls:
            return
        message: Message = {"role": "assistant", "content": text or None}
        thought, key = BETWEEN.join(filter(None, answer.thought)), self._settings.reasoning_as
        if thought and key == "none":
            self.lose("reasoning: `reasoning_as` sends it back")
        elif thought:
            message[key] = thought
        if answer.calls:
            message["tool_calls"] = [self._call(call) for call in answer.calls]
        self.messages.append(message)
        media = [shown for call in answer.calls for shown in self._answered(call)]
        if media:
            self.messages.append({"role": "user", "content": media})

    def _open(self) -> _Answer:
        if self._answer.is_answered:
            self.end_answer()
        return self._answer

    # --- calls ---------------------------------------------------------------------------------------------

    def _call(self, call: Item) -> dict[str, Any]:
        asked = arguments_of(call)
        arguments = asked if isinstance(asked, str) else dump(asked).decode()
        if call["type"] == "function_call" and self._settings.repair_call_arguments and (why := argument_fault(call)):
            arguments = "{}"
            if call["arguments"].strip():
                self.lose(f"arguments of call {call['call_id']}: {why}")
        function = {"name": self._name(call), "arguments": arguments}
        return {"id": call["call_id"], "type": "function", "function": function}

    def _name(self, call: Item) -> str:
        name, namespace = call.get("name"), call.get("namespace")
        kind = call["type"]
        name = name if isinstance(name, str) else kind.removesuffix("_call")
        called = Called(kind, name, namespace if isinstance(namespace, str) else None)
        return self._names.get(called) or flat_name(called)  # it may be offered no more

    def _answered(self, call: Item) -> list[Part]:
        """Write the output of a call; what of it has to stand in a user's message after all of them."""
        output = self._outputs.get(call["call_id"], {"output": ABORTED})
        if output.get("type") == "tool_search_output":
            found = output.get("tools")
            names = [tool.get("name") for tool in found if is_object(tool)] if is_list(found) else []
            parts: list[Part] = [_text_part(dump({"tools": names}).decode())]
        else:
            parts = self._parts(output)
        texts, media = "\n".join(_texts_of(parts)), [part for part in parts if part["type"] != "text"]
        place = self._settings.output_images
        said: Content = texts
        if media and place == "tool":
            said, media = [*([_text_part(texts)] if texts else []), *media], []
        elif media and place == "none":
            said, media = "\n".join(filter(None, [texts, _left_out("image or audio")])), []
            self.lose("images in outputs of tools")
        elif media:
            said = "\n".join(filter(None, [texts, template("chat_moved").strip()]))
            media = [_text_part(template("chat_images").strip().replace("{name}", self._name(call))), *media]
        self.messages.append({"role": "tool", "tool_call_id": call["call_id"], "content": said})
        return media

    # --- parts ---------------------------------------------------------------------------------------------

    def _content(self, item: Item) -> Content:
        """One text where all is text, as every server takes it; else a list of parts."""
        parts = self._parts(item)
        return parts if any(part["type"] != "text" for part in parts) else BETWEEN.join(_texts_of(parts))

    def _texts(self, item: Item) -> list[str]:
        return _texts_of(self._parts(item))

    def _parts(self, item: Item) -> list[Part]:
        return [said for part in content_parts(item) if (said := self._part(part)) is not None]

    def _part(self, part: Part) -> Part | None:
        match part:
            case {"type": "encrypted_content"}:
                self.lose("encrypted text: only its provider can read it")
                return None
            case {"type": "input_image", "image_url": str(url)}:
                detail = {"detail": part["detail"]} if part.get("detail") in DETAILS else {}
                return {"type": "image_url", "image_url": {"url": url, **detail}}
            case {"type": "input_audio"} if sound := _sound(part):
                return {"type": "input_audio", "input_audio": sound}
            case {"type": "input_file"} if told := {k: part[k] for k in ("filename", "file_data") if part.get(k)}:
                if "file_data" in told:
                    return {"type": "file", "file": told}
            case {"type": "refusal", "refusal": str(text)} | {"text": str(text)}:
                return _text_part(text)
            case _:
                pass
        what = str(part.get("type")).removeprefix("input_")
        self.lose(f"part {part.get('type')!r}: only the Responses API has it, or where it is kept")
        return _text_part(_left_out(what))


def _is_answer(item: Item) -> bool:
    return is_output(item) and isinstance(item.get("call_id"), str)


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _texts_of(parts: Sequence[Part]) -> list[str]:
    return [part["text"] for part in parts if part["type"] == "text"]


def _left_out(what: str) -> str:
    return template("chat_left_out").strip().replace("{what}", what)


def _sound(part: Part) -> dict[str, Any] | None:
    """Data (base64) and format of an audio part; None where they are not in it."""
    inline, url = part.get("input_audio"), part.get("audio_url")
    if is_object(inline):
        return inline
    if not isinstance(url, str) or not url.startswith("data:audio/"):
        return None
    kind, found, data = url.removeprefix("data:audio/").partition(";base64,")
    names = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}
    return {"data": data, "format": names.get(kind, kind)} if found else None


def _thought(item: Item) -> list[str]:
    """What a reasoning item says openly: what was thought, else its summary."""
    for key in ("content", "summary"):
        parts = item.get(key)
        texts = (
            [part["text"] for part in parts if is_object(part) and isinstance(part.get("text"), str)]
            if is_list(parts)
            else []
        )
        if any(texts):
            return texts
    return []


# --- what templates ask for ----------------------------------------------------------------------------------


def _in_front(messages: list[Message]) -> list[Message]:
    """One system message at the front; what stands later is said by the user."""
    first = next((n for n, message in enumerate(messages) if message["role"] not in INSTRUCTING), len(messages))
    front = [_joined(messages[:first])] if first else []
    rest = ({**message, "role": "user"} if message["role"] in INSTRUCTING else message for message in messages[first:])
    return [*front, *rest]


def _alternating(messages: list[Message]) -> list[Message]:
    """Neighbours of one role as one message; outputs stay one each."""
    groups: list[list[Message]] = []
    for message in messages:
        if groups and message["role"] == groups[-1][-1]["role"] and _is_plain(message) and _is_plain(groups[-1][-1]):
            groups[-1].append(message)
        else:
            groups.append([message])
    return [_joined(group) for group in groups]


def _is_plain(message: Message) -> bool:
    return message["role"] != "tool" and "tool_calls" not in message


def _joined(messages: list[Message]) -> Message:
    if len(messages) == 1:
        return messages[0]
    contents = [message["content"] for message in messages]
    if all(isinstance(content, str) for content in contents):
        return {**messages[0], "content": BETWEEN.join(contents)}
    parts = [part for content in contents for part in ([_text_part(content)] if isinstance(content, str) else content)]
    return {**messages[0], "content": parts}
