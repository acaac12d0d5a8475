"""Probe: what a provider can do and how it wants requests spelled, found out with a few tiny requests.

Rule 1: every request has a time limit, and none is repeated as it was.
Rule 2: what one request answers for many questions is asked once; only a refusal is taken apart.
Rule 3: "no" comes with the provider's own words; what was not found out is "unknown", never a guess.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from refold.core.history import entry
from refold.core.items import Item, argument_fault, function_call_output, message, message_text, user_message
from refold.core.jsonio import dump
from refold.core.profile import Profile, Provider
from refold.core.prompt import prompt_from
from refold.core.usage import Usage
from refold.core.wire import Identity, Request, Wire
from refold.errors import ContextWindowExceeded, ModelError, ModelRefused, ModelUnavailable, ResponseIncomplete
from refold.model import Completed, ItemDone, ItemStarted, ReasoningDelta, TextDelta
from refold.model.responses import ResponsesModel

if TYPE_CHECKING:
    import httpx2

Verdict: TypeAlias = Literal["ok", "no", "unknown"]

SECONDS = 30.0  # that a probe may take
PATIENT = 4  # times as long for the first, which may load a model, and for the one that overflows
CODE_WORD = "birch"
PARAMETERS = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
TOOL = {"type": "function", "name": "note", "description": "Notes.", "strict": False, "parameters": PARAMETERS}
OPTIONAL = {  # keys of every request that a provider may not know and that can be left out
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "refold-probe",
    "client_metadata": {"session_id": "refold-probe"},
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}]
OVERFLOW_BYTES = 16 * 1024 * 1024
WINDOW_KEYS = (  # where lists of models tell a context window; what a server runs with, before what its model could
    *("meta.n_ctx", "max_model_len", "loaded_context_length", "top_provider.context_length"),
    *("context_length", "context_window", "max_context_length", "meta.n_ctx_train"),
)
FOUND_KEYS = ("developer_role", "base_instructions_as", "send_item_ids", "supports_websockets", "leave_out")


class Finding(msgspec.Struct, frozen=True):
    """One answer about a provider; `detail` is one line."""

    name: str
    verdict: Verdict
    detail: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one request: its output, or why there is none."""

    items: tuple[Item, ...] = ()
    text: str = ""
    pieces: int = 0  # that the text came in
    began: bool = False  # output was seen
    usage: Usage | None = None
    error: ModelError | None = None
    late: bool = False
    seconds: float = 0.0

    @property
    def taken(self) -> bool:
        """Whether the provider worked on the request, to the end or not."""
        if self.error is not None:
            return isinstance(self.error, ResponseIncomplete)
        return self.began or not self.late

    @property
    def verdict(self) -> Verdict:
        if self.taken:
            return "ok"
        refused = isinstance(self.error, (ModelRefused, ContextWindowExceeded))
        return "no" if refused or self.status == 500 else "unknown"  # 500: llama.cpp says so what it cannot do

    @property
    def status(self) -> int | None:
        return getattr(self.error, "status", None)

    @property
    def calls(self) -> list[Item]:
        return [item for item in self.items if item.get("type") == "function_call"]

    @property
    def words(self) -> str:
        """Why it was not taken, as the provider said it; "" when it was."""
        if self.taken or self.error is None:
            return "" if self.taken else f"no answer within {self.seconds:g} s"
        said = [*getattr(self.error, "__notes__", []), str(self.error)]
        return said[0].removeprefix("the provider said: ")


class Prober(ResponsesModel):
    """A ResponsesModel that can also be asked what is not a response. What it asks raises ModelError."""

    async def models(self) -> Any:
        """The JSON document that `GET /models` answers with."""
        self._ready_client()
        async with aclosing(await self._get("/models", {**self._headers, "accept": "application/json"})) as response:
            try:
                return msgspec.json.decode(await response.aread())
            except (msgspec.DecodeError, RecursionError):
                raise ModelRefused("the list of models is not JSON", status=response.status_code) from None

    async def opens_websocket(self) -> bool:
        """Whether a WebSocket handshake at `/responses` is accepted; it is closed at once."""
        from refold.model.websocket import handshake_headers

        self._ready_client()
        async with aclosing(await self._get("/responses", handshake_headers(self._headers))) as response:
            return response.status_code == 101

    async def _get(self, place: str, headers: dict[str, str]) -> httpx2.Response:
        from httpx2 import RequestError

        client = self._ready_client()
        assert self._url is not None
        url = self._url.copy_with(path=self._url.path.removesuffix("/responses") + place)
        request = client.build_request("GET", url, headers=headers)
        try:
            response = await client.send(request, stream=True)
        except RequestError as error:
            raise self._unanswered(error) from error
        if response.status_code >= 300:
            raise await self._refusal(response)
        return response


class Examination:
    """All probes of one provider and model, in order. Mutable: it gathers what they found.

    `settings` are the keys of `[model_providers.X]` that fit; `window` the context window that the provider told;
    `works` whether a turn as refold sends it was answered. `overflow` true sends one request that is too large.
    """

    def __init__(
        self,
        profile: Profile,
        provider: Provider,
        *,
        api_key: str | None = None,
        seconds: float = SECONDS,
        overflow: bool = False,
    ) -> None:
        self.profile, self.provider, self.overflow = profile, provider, overflow
        self.works, self.usage = False, Usage()
        self.requests = self.uncounted = 0  # to the model; of them, those whose tokens the provider did not tell
        self.window: int | None = None
        self.settings: dict[str, Any] = {key: getattr(provider, key) for key in FOUND_KEYS}
        self._seconds = seconds
        self._optional = [key for key in OPTIONAL if key not in provider.leave_out]
        over_http = msgspec.structs.replace(provider, supports_websockets=False)
        self._model = Prober(profile, over_http, api_key=api_key)

    async def run(self) -> AsyncGenerator[Finding]:
        """The findings as they come; after the last one everything else is known."""
        try:
            first = await self._ask(self._small(user_message("Answer with the word OK.")), PATIENT)
            for finding in self._first(first):
                yield finding
            steps = [self._roles, self._turn, self._image, self._websocket] if first.taken else []
            steps += [self._context_window] if first.taken or (first.status or 401) not in (401, 403) else []
            steps += [self._overflow] if first.taken and self.overflow else []
            for step in steps:
                for finding in await step():
                    yield finding
        finally:
            await self._model.close()

    @property
    def fitting(self) -> dict[str, Any]:
        """The settings that fit where they differ from the defaults or from what is configured."""
        plain, now, found = Provider(), self.provider, self.settings.items()
        return {key: value for key, value in found if not value == getattr(plain, key) == getattr(now, key)}

    def _first(self, answer: Answer) -> list[Finding]:
        """What a plain turn tells: the way to the provider, the key, the stream, the usage."""
        words, status, error = self._words(answer), answer.status, answer.error
        silent = isinstance(error, ModelUnavailable) and status is None  # not even a refusal, or a broken stream
        if (silent and getattr(error, "request_level", False)) or (answer.late and not answer.began):
            return [Finding("reachable", "unknown" if answer.late else "no", words)]
        reachable = Finding("reachable", "ok")
        if status in (401, 403):
            return [reachable, Finding("key", "no", words)]
        key = Finding("key", "ok", "" if self.provider.env_key else "none is configured")
        if status == 200 or silent:  # 200: a document
            return [reachable, key, Finding("streaming", "no", words)]
        if not answer.taken:
            return [reachable, Finding("key", "unknown"), Finding("turn", answer.verdict, words)]
        ended = "; it was cut short" if answer.late or error else ""
        stream = Finding("streaming", "ok", f"{answer.pieces} pieces of text in {answer.seconds:.1f} s{ended}")
        if answer.usage is None or not answer.usage.total_tokens:
            untold = "the answer was cut short" if ended else "refold goes by estimates"
            return [reachable, key, stream, Finding("usage", "unknown" if ended else "no", untold)]
        tokens = f"input {answer.usage.input_tokens:,}, output {answer.usage.output_tokens:,}"
        return [reachable, key, stream, Finding("usage", "ok", tokens)]

    async def _roles(self) -> list[Finding]:
        """Which roles are taken, at the front and in the middle as refold uses them, and whether they are read."""
        word, question = f"The code word is {CODE_WORD}.", user_message("What is the code word?")
        asked: dict[str, Request] = {}
        for role in ("developer", "system"):
            front, middle = message(role, [word]), message(role, ["Answer with one word."])
            asked[role] = self._small(front, user_message("Hello."), message("assistant", ["Hello."]), middle, question)
        asked["instructions"] = self._small(question, instructions=word)
        answers = {name: await self._ask(request) for name, request in asked.items()}
        reads = {name: CODE_WORD in answer.text.lower() for name, answer in answers.items()}
        (developer, system, key), (heard, obeyed, read) = answers.values(), reads.values()
        role, is_read = self.provider.developer_role, True
        if developer.taken and (heard or not obeyed):
            role, is_read = "developer", heard
        elif system.taken:
            role, is_read = "system", obeyed
        elif developer.verdict == system.verdict == "no":
            role, is_read = "user", not key.taken
        self.settings["developer_role"] = role
        if key.verdict != "unknown":
            by_key = key.taken and not is_read and (read or role == "user")
            self.settings["base_instructions_as"] = "instructions" if by_key else "message"
        shown = {True: "and read", False: "taken, but the answer does not show that it was read"}
        return [Finding(name, one.verdict, self._words(one) or shown[reads[name]]) for name, one in answers.items()]

    async def _turn(self) -> list[Finding]:
        """A turn as refold sends it, with the settings that fit so far; where it is refused, why."""
        self.settings["send_item_ids"] = True
        answer, tools, parallel = await self._as_sent([TOOL]), [TOOL], True
        names = ("item ids", *self._optional, "tools", "parallel calls")
        parts = {name: Finding(name, answer.verdict, self._words(answer)) for name in names}
        if answer.verdict == "no":
            parts = await self._parts()
            refused = [name for name, finding in parts.items() if finding.verdict == "no"]
            self.settings["send_item_ids"] = "item ids" not in refused
            self.settings["leave_out"] = (*self.provider.leave_out, *(name for name in refused if name in OPTIONAL))
            tools, parallel = [] if "tools" in refused else [TOOL], "parallel calls" not in refused
            answer = await self._as_sent(tools, parallel) if refused else answer
        if answer.taken and tools:
            parts["tools"] = self._called(answer)
        self.works = answer.taken
        findings = [*parts.values(), Finding("turn", answer.verdict, self._words(answer))]
        return findings + (await self._after(answer, parallel) if answer.calls else [])

    async def _parts(self) -> dict[str, Finding]:
        """What of a refused turn is refused by itself."""
        said, named = (user_message("Answer with the word OK.", id=i) for i in (None, f"msg_{uuid.uuid4()}"))
        asked = {"item ids": self._small(named)}
        asked |= {key: self._small(said, **{key: OPTIONAL[key]}) for key in self._optional}
        asked["tools"] = self._small(said, tools=[TOOL])
        asked["parallel calls"] = self._small(said, tools=[TOOL], parallel_tool_calls=True)
        answers = {name: await self._ask(request) for name, request in asked.items()}
        return {name: Finding(name, answer.verdict, self._words(answer)) for name, answer in answers.items()}

    def _called(self, answer: Answer) -> Finding:
        if not answer.calls:
            cut_short = answer.late or answer.error is not None
            why = "the answer was cut short" if cut_short else f"the model did not call; it said {answer.text[:60]!r}"
            return Finding("tools", "unknown" if cut_short else "no", f"taken, but {why}")
        fault = argument_fault(answer.calls[0])
        detail = f"bad arguments: {fault}" if fault else answer.calls[0].get("arguments", "")
        return Finding("tools", "no" if fault else "ok", f"called with {detail}")

    async def _after(self, answer: Answer, parallel: bool) -> list[Finding]:
        """The request after a call: its items are sent back as they came, with what the call gave."""
        outputs = [function_call_output(str(call.get("call_id")), "done") for call in answer.calls]
        second = await self._as_sent([TOOL], parallel, *answer.items, *outputs)
        cached = second.usage.cached_input_tokens if second.usage else 0
        seen = f"{cached:,} tokens" if cached else "none seen; prompts as short as these are often not cached"
        after = Finding("call output", second.verdict, self._words(second))
        return [after, Finding("cached", "ok" if cached else "unknown", seen)]

    async def _image(self) -> list[Finding]:
        answer = await self._ask(self._small({"type": "message", "role": "user", "content": IMAGE}))
        return [Finding("images", answer.verdict, self._words(answer))]

    async def _websocket(self) -> list[Finding]:
        opened, answer = await self._within(self._model.opens_websocket())
        if answer.verdict != "unknown":
            self.settings["supports_websockets"] = opened is True
        ignored = opened is False
        why = "the handshake is ignored" if ignored else self._words(answer)
        return [Finding("websocket", "no" if ignored else answer.verdict, why)]

    async def _context_window(self) -> list[Finding]:
        """From the list of models; else from the settings."""
        document, answer = await self._within(self._model.models())
        facts, count = listed(document, self.profile.slug)
        self.window, name = window_of(facts or {})
        if self.window:
            return [Finding("context window", "ok", f"{self.window:,} tokens ({name} in the list of models)")]
        told = "the list of models does not tell" if facts else f"the list of {count} models has no {self.profile.slug}"
        why = told if answer.taken else f"no list of models: {self._words(answer)}"
        if self.profile.known and self.profile.context_window:
            return [Finding("context window", "ok", f"{self.profile.context_window:,} tokens as known or set; {why}")]
        return [Finding("context window", "unknown", f"{why}; set model_context_window")]

    async def _overflow(self) -> list[Finding]:
        """A request larger than the window: is that told, and with which number?"""
        window = self.window or self.profile.context_window or 0
        text = "word " * min(max(window, 4_096) * 5 // 4, OVERFLOW_BYTES // 5)
        answer = await self._ask(self._small(user_message(text)), PATIENT)
        if isinstance(answer.error, ContextWindowExceeded):
            self.window = answer.error.limit or self.window
            return [Finding("overflow", "ok", self._words(answer))]
        if answer.taken:
            counted = f"{answer.usage.input_tokens:,} tokens counted" if answer.usage else "tokens not told"
            return [Finding("overflow", "no", f"{len(text):,} bytes were taken without an error ({counted})")]
        return [Finding("overflow", answer.verdict, f"not told as an overflow: {self._words(answer)}")]

    async def _within(self, asked: Awaitable[Any]) -> tuple[Any, Answer]:
        """What it gives in time, or None and why not."""
        try:
            async with asyncio.timeout(self._seconds):
                return await asked, Answer()
        except TimeoutError:
            return None, Answer(late=True, seconds=self._seconds)
        except ModelError as error:
            return None, Answer(error=error)

    def _small(self, *items: Item, **more: Any) -> Request:
        """A request with nothing that is not needed."""
        body = {"store": False, **more, **self.provider.extra_body}
        kept = {key: value for key, value in body.items() if key not in self.provider.leave_out}
        head = b'{"model":' + dump(self.profile.slug) + b',"stream":true,"input":['
        tail = b"]," + dump(kept)[1:] if kept else b"]}"
        return Request(head=head, parts=tuple(map(dump, items)), tail=tail, items=len(items))

    async def _as_sent(self, tools: list[dict[str, Any]], parallel: bool = True, *later: Item) -> Answer:
        """A turn spelled by the wire with the settings found so far."""
        found = {key: value for key, value in self.settings.items() if key != "supports_websockets"}
        profile = msgspec.structs.replace(self.profile, lite=False)
        wire = Wire(msgspec.structs.replace(self.provider, **found), profile)
        asked = user_message("Call the function note with the word yes.", id=f"msg_{uuid.uuid4()}")
        history = [entry(item, "probe") for item in (asked, *later)]
        prompt = prompt_from(history, profile, base_instructions="Do what the user asks.", tools=tools)
        prompt = msgspec.structs.replace(prompt, parallel_tool_calls=parallel and prompt.parallel_tool_calls)
        return await self._ask(wire.request(prompt, Identity(thread_id=str(uuid.uuid4()))))

    async def _ask(self, request: Request, patience: float = 1) -> Answer:
        items: list[Item] = []
        pieces, began, late, error, usage = 0, False, False, None, None
        self.requests += 1
        start, limit = time.monotonic(), self._seconds * patience
        try:
            async with asyncio.timeout(limit), aclosing(self._model.sample(request)) as events:
                async for event in events:
                    began = began or isinstance(event, (ItemStarted, ItemDone, TextDelta, ReasoningDelta))
                    pieces += isinstance(event, TextDelta)
                    if isinstance(event, ItemDone):
                        items.append(event.item)
                    elif isinstance(event, Completed):
                        usage = event.usage
        except TimeoutError:
            late = True
        except ModelError as failure:
            error, usage = failure, getattr(failure, "usage", None)
        self.usage += usage or Usage()
        self.uncounted += usage is None and error is None
        spent = limit if late else time.monotonic() - start
        told = {"usage": usage, "error": error, "late": late, "seconds": spent}
        text = " ".join(message_text(item) for item in items if item.get("type") == "message")
        return Answer(items=tuple(items), text=text, pieces=pieces, began=began, **told)

    def _words(self, answer: Answer) -> str:
        return answer.words.replace(f" from {self.provider.base_url}", "")


def listed(document: Any, slug: str) -> tuple[dict[str, Any] | None, int]:
    """A model's entry in a list of models, and how many there are. The only one may be called anything."""
    found = document.get("data") or document.get("models") if isinstance(document, dict) else document
    entries = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    for each in entries:
        aliases = each.get("aliases")
        if slug in (each.get("id"), each.get("name"), *(aliases if isinstance(aliases, list) else ())):
            return each, len(entries)
    return (entries[0] if len(entries) == 1 else None), len(entries)


def window_of(entry: dict[str, Any]) -> tuple[int | None, str]:
    """The context window that an entry tells, and under which name."""
    for name in WINDOW_KEYS:
        value: Any = entry
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value, name
    return None, ""
