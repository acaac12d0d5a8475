"""Plays a recorded scenario of the real program through real sessions; gives both sides' requests in one spelling."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

from refold.core.config import Config, parse_config
from refold.core.items import is_model_generated
from refold.core.profile import Profile
from refold.core.templates import template
from refold.core.truncate import Budget
from refold.errors import RefoldError
from refold.model.responses import ResponsesModel
from refold.session.clock import Clock
from refold.session.events import SamplingStarted, ToolStarted
from refold.session.session import Session
from refold.testing import Reply, ResponsesServer, text_reply, usage
from refold.tools.commands import exec_command

DATA = Path(__file__).parent.parent / "data" / "oracle" / "scenarios"
LEFT_OUT = ("id", "internal_chat_message_metadata_passthrough")
BIG = 4000  # characters; longer texts are recorded by their hash
BASE = "<BASE_INSTRUCTIONS>"
MODELS = {
    "mock-tokens": Profile(slug="mock-tokens", truncation=Budget("tokens", 10_000), comp_hash="0001"),
    "mock-bytes": Profile(slug="mock-bytes", truncation=Budget("bytes", 10_000), comp_hash="0002"),
    "mock-small": Profile(
        slug="mock-small", context_window=50_000, truncation=Budget("tokens", 10_000), comp_hash="0001"
    ),
}


def load(name: str) -> dict[str, Any]:
    text = (DATA / f"{name}.json").read_text(encoding="utf-8")
    text = text.replace("<SUMMARIZATION_PROMPT>\\n", json.dumps(template("handoff"))[1:-1])
    return json.loads(text.replace("<SUMMARY_PREFIX>", json.dumps(template("summary_prefix"))[1:-1]))


def recorded(scenario: dict[str, Any]) -> list[list[Any]]:
    return _same_spelling([x["input"] for run in scenario["runs"] for x in run["exchanges"]])


def played(scenario: dict[str, Any], folder: Path) -> list[list[Any]]:
    """The requests that sessions of ours send when they are given the recorded replies."""
    place = folder / "scenario"
    place.mkdir()
    moved = json.loads(json.dumps(scenario).replace("/scenario/", f"{place}/"))  # what its commands write to
    exchanges = [exchange for run in moved["runs"] for exchange in run["exchanges"]]
    replies = [recorded_reply(exchange, exchanges[number + 1 :]) for number, exchange in enumerate(exchanges)]
    with ResponsesServer(replies) as server:
        asyncio.run(Player(scenario, server, folder).play())
        return _same_spelling(
            [json.loads(json.dumps(request.input).replace(f"{place}/", "/scenario/")) for request in server.requests]
        )


def _said(run: dict[str, Any]) -> str:
    """What the user of a run said: its last argument, or, where that only tells a length, the recorded message."""
    if run["args"][-1] != "-" and not re.fullmatch(r"<\d+ bytes>", run["args"][-1]):
        return run["args"][-1]
    turn = next(exchange for exchange in run["exchanges"] if exchange["request_kind"] == "turn")
    typed = [item for item in turn["input"] if item.get("role") == "user"][-1]["content"][0]["text"]
    return typed if isinstance(typed, str) else _made_anew(typed["$big"])


def _typed(exchange: dict[str, Any]) -> str:
    """The newest user message of a request."""
    return [item for item in exchange["input"] if item.get("role") == "user"][-1]["content"][0]["text"]


def _made_anew(big: dict[str, Any]) -> str:
    """A long text from its recorded head and length; the hash proves that it is the same."""
    head = big["head"]
    if not head.startswith("MSG"):
        text = head[:2] * (big["bytes"] // len(head[:2].encode()))
    else:
        tag = head.split(" ", 1)[0]
        text = "".join(f"{tag} {n:06d} the quick brown fox\n" for n in range(1, big["bytes"] // 20))[: big["bytes"]]
    assert sha256(text.encode()).hexdigest() == big["sha256"], "the generator does not make the recorded text"
    return text


def recorded_reply(exchange: dict[str, Any], later: list[dict[str, Any]]) -> Reply:
    """The recorded reply; where none was noted, the model's items that the next request has and this one has not."""
    if "response" in exchange:
        return Reply.from_json(exchange["response"])
    if exchange["request_kind"] == "compaction":
        closing = later[0]["input"][-2]
        if closing["type"] == "compaction":
            return Reply(items=(closing,), usage=usage(100, 10))
        return text_reply(closing["content"][0]["text"].partition("\n")[2])
    if not later:
        return text_reply("the end")
    known = {item.get("id") for item in exchange["input"]}
    new = [item for item in later[0]["input"] if item.get("id") not in known]
    return Reply(items=tuple(item for item in new if is_model_generated(item)), usage=usage(100, 10))


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0  # the recorded waits are not what is compared here


class Player:
    """One scenario's processes, one after the other: what is done before each, and how each ends."""

    def __init__(self, scenario: dict[str, Any], server: ResponsesServer, folder: Path) -> None:
        self.scenario = scenario
        self.server = server
        self.home = folder / "home"
        self.work = folder / "w"
        self.thread = ""  # the thread that the recording goes on with
        for place in (self.home, self.work, folder / "w2"):
            place.mkdir(exist_ok=True)

    async def play(self) -> None:
        name = self.scenario["scenario"]
        for number, run in enumerate(self.scenario["runs"]):
            BEFORE.get((name, number), lambda player: None)(self)
            if run["args"]:
                await self._run(run, END.get((name, number)))
            else:
                await self._converse(name, run["exchanges"])

    async def _converse(self, name: str, exchanges: list[dict[str, Any]]) -> None:
        """One process that is talked to: messages, a steer, an interrupt, compactions by hand."""
        model = ResponsesModel(MODELS["mock-tokens"], self._provider())
        session = Session.start(
            model=model, tools=[exec_command], cwd=self.work, instructions=BASE, home=self.home, clock=Hasty()
        )
        typed = [_typed(exchange) for exchange in exchanges]
        self.thread = session.id
        async with session:
            if name == "t_steer":
                turn = session.send(typed[0])
                async for event in turn:
                    if isinstance(event, ToolStarted):
                        session.steer(typed[1])
                return
            for number, exchange in enumerate(exchanges):
                if name == "t_revert" and number == 3:
                    await session.undo(turns=2)  # what the real program calls reverting to the second turn
                if exchange["request_kind"] == "compaction":
                    await session.compact()
                elif name == "t_interrupt" and number == 0:
                    await _interrupted(session, typed[number])
                    while session.busy:
                        await asyncio.sleep(0.01)
                else:
                    await session.send(typed[number])

    async def _run(self, run: dict[str, Any], end: str | None) -> None:
        words = list(run["args"])
        settings = {k: v for k, v in self.scenario["config"].items() if k in Config.__struct_fields__}
        if words[0] == "-c":
            key, _, value = words[1].partition("=")
            settings[key] = int(value) if value.isdigit() else value
            del words[:2]
        if settings.get("experimental_compact_prompt_file") == "<file>":
            settings["experimental_compact_prompt_file"] = str(self.home / "prompt.md")
        settings["compaction"] = {"fallback": False}  # the real program has none
        settings["model_catalog_json"] = self._catalogue()
        config = parse_config({k: v for k, v in settings.items() if k in Config.__struct_fields__}, "scenario")
        verb = words.pop(0) if words[0] in ("resume", "fork") else "start"
        slug = words[words.index("-m") + 1] if "-m" in words else "mock-tokens"
        model = ResponsesModel(config.profile(MODELS[slug]), self._provider())
        common: dict[str, Any] = {"model": model, "tools": [exec_command], "home": self.home, "config": config}
        if verb == "start":
            session = Session.start(cwd=self.work, instructions=BASE, clock=Hasty(), **common)
        else:
            which = Session.resume if verb == "resume" else Session.fork
            session = which(
                self._newest() if "--last" in words else self.thread, cwd=self.work, clock=Hasty(), **common
            )
        self.thread = self.thread if verb == "fork" else session.id
        async with session:
            await ENDINGS[end](session, _said(run), **self._images(run))

    def _images(self, run: dict[str, Any]) -> dict[str, Any]:
        """The images of a run, each made anew where it stood."""
        words, sent = run["args"], [item for exchange in run["exchanges"] for item in exchange["input"]]
        names = [words[index + 1] for index, word in enumerate(words) if word == "-i"]
        parts = [p for item in sent for p in item.get("content") or [] if isinstance(p, dict) and "image_url" in p]
        for name, part in zip(names, parts, strict=False):
            Path(name).write_bytes(base64.b64decode(part["image_url"].partition(",")[2]))
        return {"images": names} if names else {}

    def _newest(self) -> str:
        return max(self.home.rglob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns).as_posix()

    def _provider(self) -> Any:
        settings = self.scenario["config"]
        retries = {key: settings[key] for key in ("stream_max_retries", "request_max_retries") if key in settings}
        name = self.scenario["scenario"]
        if name == "g_azure":
            return self.server.provider(name="Azure", **retries)
        if name.startswith("g_") or name == "t_manual_compact_remote":
            return self.server.provider(name="OpenAI", **retries)
        return self.server.provider(**retries)

    def _catalogue(self) -> str:
        """A file with what is known of the models, for those that a session went on with before."""
        path = self.home / "models.json"
        policies = {slug: {"mode": one.truncation.mode, "limit": one.truncation.limit} for slug, one in MODELS.items()}
        models = [
            {
                "slug": slug,
                "context_window": one.context_window,
                "truncation_policy": policies[slug],
                "comp_hash": one.comp_hash,
            }
            for slug, one in MODELS.items()
        ]
        path.write_text(json.dumps({"models": models}))
        return str(path)


async def _to_its_end(session: Session, text: str, **more: Any) -> None:
    with contextlib.suppress(RefoldError):  # a turn that the recording lets fail
        await session.send(text, **more)


async def _until(session: Session, text: str, moment: type[Any]) -> None:
    async for event in session.send(text):
        if isinstance(event, moment):
            await asyncio.sleep(0.05)
            return


async def _interrupted(session: Session, text: str) -> None:
    await _until(session, text, ToolStarted)
    session.interrupt()


async def _killed_in_tool(session: Session, text: str) -> None:
    await _until(session, text, ToolStarted)
    await _killed_now(session)


async def _killed_in_sampling(session: Session, text: str) -> None:
    await _until(session, text, SamplingStarted)
    await _killed_now(session)


async def _killed_now(session: Session) -> None:
    """As if the process ended here: what it writes from now on, it has not written."""
    assert session.path is not None
    log = session.path.read_bytes()
    session.interrupt()
    while session.busy:
        await asyncio.sleep(0.01)
    session.path.write_bytes(log)


ENDINGS: dict[str | None, Any] = {
    None: _to_its_end,
    "interrupt": _interrupted,
    "kill in tool": _killed_in_tool,
    "kill in sampling": _killed_in_sampling,
}
END = {
    ("f_kill_mid_compaction", 1): "kill in sampling",
    ("n_kill_mid_stream", 0): "kill in sampling",
    ("n_kill_mid_tool", 0): "kill in tool",
    ("n_sigint_mid_tool", 0): "interrupt",
    ("s_orphans_and_compact", 1): "kill in tool",
    ("x_filtered_users", 5): "interrupt",
}


def _agents_md(text: str | None) -> Any:
    def change(player: Player) -> None:
        path = player.work / "AGENTS.md"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)

    return change


def _elsewhere(player: Player) -> None:
    player.work = player.work.parent / "w2"
    (player.work / "AGENTS.md").write_text("Work2 rules.\n")


def _global(player: Player) -> None:
    (player.home / "AGENTS.md").write_text("Global rules.\n")


def _own_prompt(player: Player) -> None:
    (player.home / "prompt.md").write_text("\n  PROMPT FROM FILE  \n")


BEFORE: dict[tuple[str, int], Any] = {
    ("k_world_state", 0): _agents_md("Always say please.\n"),
    ("k_world_state", 2): _agents_md("Never say please.\nSecond line.\n"),
    ("k_world_state", 3): _agents_md(None),
    ("k_world_state", 4): _elsewhere,
    ("k_world_state", 6): _global,
    ("k_world_state_compact", 0): _agents_md("Rule one.\n"),
    ("k_world_state_compact", 2): _agents_md("Rule two.\n"),
    ("k_world_state_compact", 4): _agents_md("Rule three.\n"),
    ("g_remote_multi_users", 0): _agents_md("Rule one.\n"),
    ("h_compact_prompt_file", 0): _own_prompt,
}


# --- one spelling for both ---------------------------------------------------------------------------------------


def _same_spelling(requests: list[list[Any]]) -> list[list[Any]]:
    names: dict[str, str] = {}
    return [[spelled(item, names) for item in items] for items in requests]


def spelled(item: dict[str, Any], names: dict[str, str]) -> Any:
    """Ids by first appearance; context by role and kinds; command output without its clock."""
    renamed = {"id": names.setdefault(item["id"], f"#{len(names)}")} if "id" in item else {}
    texts = [part.get("text", "") for part in item.get("content") or [] if isinstance(part, dict)]
    context = [kind for text in texts if (kind := _context_kind(item, text))]
    if context:
        return {"role": item["role"], "context": sorted(set(context)), **renamed}
    plain = {key: value for key, value in item.items() if key not in LEFT_OUT and value is not None}
    if isinstance(plain.get("content"), list):
        plain["content"] = [_part(part) for part in plain["content"]]
    if isinstance(plain.get("output"), str):
        plain["output"] = re.sub(r"Chunk ID: \w+", "Chunk ID: 000000", plain["output"])
        plain["output"] = re.sub(r"Wall time: [\d.]+", "Wall time: 0.0000", plain["output"])
        plain["output"] = re.sub(r"session ID \d+", "session ID 53822", plain["output"])
    if "output" in plain:
        plain["output"] = _part({"text": plain["output"]})["text"]
    return {**plain, **renamed}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """A part with a long text as its length and hash, as the recordings hold it."""
    text = part.get("text")
    if isinstance(text, dict):
        return {**part, "text": {"bytes": text["$big"]["bytes"], "sha256": text["$big"]["sha256"]}}
    if isinstance(text, str) and len(text) > BIG:
        return {**part, "text": {"bytes": len(text.encode()), "sha256": sha256(text.encode()).hexdigest()}}
    return part


def _context_kind(item: dict[str, Any], text: Any) -> str | None:
    if not isinstance(text, str):
        return None
    if item.get("role") == "developer":
        return None if text == BASE else "developer"
    if item.get("role") == "user":
        for start in ("<environment_context>", "# AGENTS.md instructions", "<turn_aborted>"):
            if text.startswith(start):
                return start
    return None
