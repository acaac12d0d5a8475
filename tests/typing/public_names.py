"""Every public name, used as a host uses it; `make lint` reads the types, nothing runs this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, assert_type

import refold
from refold import (
    Budget,
    Config,
    Hook,
    Limits,
    Memory,
    Price,
    Profile,
    Provider,
    Question,
    RefoldError,
    ResponsesModel,
    ScriptedModel,
    Session,
    TurnResult,
    Verdict,
    exec_command,
    image,
    tool,
    view_image,
)
from refold.core.prompt import Prompt
from refold.core.records import ItemRecorded, TurnEnded
from refold.core.usage import Usage
from refold.model import Model
from refold.server import GatewaySettings, Secrets, new_app, serve
from refold.server.settings import read_secrets
from refold.session.events import CompactionEnded, Event, TextPreview
from refold.session.pins import Pin
from refold.session.preview import Preview
from refold.session.session import Turn
from refold.session.sync import SyncSession
from refold.session.undo import Undone
from refold.tools import FunctionTool, Tool, ToolContext, ToolResult

assert_type(refold.__version__, str)


# --- tools ------------------------------------------------------------------------------------------------------------


@tool
def search_docs(words: str, most: int = 5) -> list[str]:
    """Search the documentation."""
    return [words] * most


@tool(name="count", parallel=False)
async def count_words(text: str, context: ToolContext) -> int:
    """Count words."""
    return len(text.split()) + len(context.cwd)


class Clock:
    """A tool without a decorator: the protocol is enough."""

    name = "clock"
    spec: dict[str, Any] = {"type": "function", "name": "clock", "parameters": {"type": "object"}}
    parallel = True
    needs_approval = False

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(output="noon")


def tools() -> list[Tool]:
    assert_type(search_docs("words", most=2), list[str])
    assert isinstance(count_words, FunctionTool)
    return [exec_command, view_image, search_docs, count_words, Clock()]


@tool(timeout=5)
def draw(where: str, context: ToolContext) -> list[Any]:
    """Draw something."""
    context.progress("drawing")
    return ["drawn", image(where, detail="low")]


async def allow(question: Question) -> Verdict:
    assert_type(question.remember, tuple[str, ...])
    return Verdict(question.command is not None, remember=bool(question.remember), word="no, ask me first")


# --- facts and settings -----------------------------------------------------------------------------------------------


def models() -> list[Model]:
    budget = Budget("tokens", 10_000)
    assert_type(budget.bytes, int)
    profile = Profile(slug="m", context_window=128_000, truncation=budget)
    assert_type(profile.compact_limit, int | None)
    provider = Provider(id="local", name="local", base_url="http://127.0.0.1:8000/v1", env_key=None)
    return [ResponsesModel(profile, provider, api_key="k"), ScriptedModel(["hi"], profile=profile)]


def settings() -> Config:
    limits = Limits(turn_steps=20, session_cost=5.0)
    price = Price(input=1.25, output=10.0)
    assert_type(price.of(Usage()), float)
    config = Config(model="m", model_auto_compact_token_limit=1_000, limits=limits, model_price=price)
    assert_type(config.model_context_window, int | None)
    return config


# --- a session, asynchronous ------------------------------------------------------------------------------------------


async def talk(folder: Path) -> TurnResult:
    async with Session.start(model=models()[1], tools=tools(), cwd=folder, config=settings(), approve=allow) as session:
        assert_type(session.id, str)
        assert_type(session.path, Path | None)
        turn = session.send("Fix the failing test")
        assert_type(turn, Turn)
        async for event in turn:
            show(event)
        assert_type(session.steer("only billing/"), str)
        assert_type(session.interrupt(), bool)
        assert_type(await session.compact(), CompactionEnded)
        assert_type(await session.compact(preview=True), Preview)
        assert_type(await session.undo(), Undone)
        assert_type(session.pin("5"), Pin)
        assert_type(session.unpin("5"), list[str])
        assert_type(session.drop_rule("5"), list[str])
        session.hooks.append(Watching())
        result = await session.send("And now?", images=[folder / "p.png"], output_schema={"type": "object"})
        assert_type(result, TurnResult)
        assert_type(result.text, str | None)
        assert_type(result.usage, Usage)
    async with Session.resume(session.id, model="m") as again, Session.fork(folder / "a.jsonl") as other:
        assert_type(again, Session)
        assert_type(other, Session)
    return result


class Watching(Hook):
    async def after_turn(self, ended: TurnEnded) -> None:
        print(ended.outcome)


def show(event: Event) -> str:
    match event:
        case TextPreview(text=text):
            return text
        case ItemRecorded(item=item):
            return json.dumps(item)
        case TurnEnded(outcome=outcome):
            return outcome
        case _:
            return ""


# --- a session, blocking ----------------------------------------------------------------------------------------------


def talk_blocking() -> None:
    with Session.start_sync(model="m", tools=tools()) as session:
        assert_type(session, SyncSession)
        assert_type(session.send("hi"), TurnResult)
        for event in session.stream("more"):
            show(event)
    try:
        with Session.resume_sync("0190") as session:
            assert_type(session.compact(), CompactionEnded)
    except RefoldError as error:
        print(str(error))


# --- a gateway --------------------------------------------------------------------------------------------------------


def gateway(environ: dict[str, str]) -> object:
    settings = GatewaySettings(upstream="http://127.0.0.1:8000/v1", model_map={"*": "m"}, accepts=("custom",), port=0)
    assert_type(settings.idle_seconds, float)
    secrets = read_secrets(settings, environ)
    assert_type(secrets, Secrets)
    assert_type(secrets.passes_bearer, bool)
    return new_app(settings, secrets)


def listen(settings: GatewaySettings) -> None:
    def told(address: str, secrets: Secrets) -> None:
        print(address, repr(secrets))

    assert_type(serve(settings, told), None)


# --- a memory, without a loop -----------------------------------------------------------------------------------------


async def remember(model: Model) -> list[dict[str, Any]]:
    with Memory.open("./memory", model="gpt-5.5", instructions="Be brief.") as memory:
        memory.add({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]})
        memory.add([], usage={"input_tokens": 1, "output_tokens": 1, "total_tokens": 2})
        assert_type(await memory.make_room(model), CompactionEnded | None)
        prompt = memory.prompt()
        assert_type(prompt, Prompt)
        assert_type(memory.tokens, int)
        return prompt.input
