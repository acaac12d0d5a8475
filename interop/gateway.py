"""Gateway: what holds when the real program has `refold serve` for its provider, over HTTP and over a WebSocket.

The upstream is the scripted server: it knows no compaction, and keeps what it was told. Every check looks at that, word
for word, and at the items of the rollout that the real program wrote.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from interop.checks import Field, Result, result
from interop.compare import Differs, Played, compare, ids_in
from interop.real import copied
from interop.script import FULL, LIMIT, Turn, answer, calls
from interop.served import ROUTES, Client, Gateway, Heard, Road, Transport
from interop.told import equal, equal_sealed, equal_told, item_of, items_of, lines_of, told, tools_of
from refold.model.scripted import Reply
from refold.testing import ResponsesServer, usage

OPENS = ["base", "context", "context"]  # how every request begins
ONE = [*OPENS, "one"]
AT_ONCE = 1  # token at which compaction is due: it comes before anything is answered
TRIES = 3  # that a client makes when it repeats a request twice
OUT_OF_ROOM = "ran out of room in the model's context window"
PATCH = "*** Begin Patch\n*** Add File: greeting.txt\n+hello\n*** End Patch\n"

# How servers say that an input does not fit.
LLAMA_CPP = {
    "code": 400,
    "message": "the request exceeds the available context size, try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 9_000,
    "n_ctx": 4_096,
}
VLLM = {
    "code": 400,
    "message": "This model's maximum context length is 4096 tokens. However, your request has 9000 input tokens.",
    "type": "BadRequestError",
    "param": None,
}


def overflow(error: dict[str, Any]) -> Reply:
    return Reply(status=400, body={"error": error})


# --- (a), (b) turns and compactions --------------------------------------------------------------------------------


def answers(road: Road) -> str:
    script = (calls("a", "echo one", "echo two", thought=True), answer("end"))
    with ResponsesServer(script) as upstream, road.gateway(upstream) as gateway:
        heard = road.client().say("one", gateway.url)
        routes = {route for route, _ in gateway.counts()}
    heard.answered("answer end")
    equal("how the gateway was asked", routes, {ROUTES[road.transport]})
    output = [
        item["output"].rpartition("\n")[0].rpartition("\n")[2] for item in items_of(heard.rollout) if "output" in item
    ]
    equal("outputs", output, ["one", "two"])
    equal("reasoning", item_of(heard.rollout, "reasoning")["encrypted_content"], "sealed-a")
    calls_told = ["function_call exec_command"] * 2 + ["function_call_output"] * 2
    return equal_told(upstream, ONE, [*ONE, *calls_told])


def _compacted(road: Road, client: Client, gateway: Gateway) -> Heard:
    """Two turns, a compaction before the second one: three replies."""
    first = client.say("one", gateway.url)
    first.answered("answer first")
    return client.say("two", gateway.url, first.rollout, limit=LIMIT)


BEFORE_TURN = (answer("first", FULL), answer("summary"), answer("second"))
COMPACTED = (ONE, [*ONE, "answer first", "handoff"], [*ONE, "summary: answer summary", "two"])


def compacts_before_turn(road: Road) -> str:
    with ResponsesServer(BEFORE_TURN) as upstream, road.gateway(upstream) as gateway:
        heard = _compacted(road, road.client(), gateway)
    heard.answered("answer second")
    equal_sealed(heard.rollout, 1, "answer summary")
    return equal_told(upstream, *COMPACTED)


def compacts_in_mid_turn(road: Road) -> str:
    script = (calls("a", "echo one", tokens=FULL, thought=True), answer("summary"), answer("end"))
    with ResponsesServer(script) as upstream, road.gateway(upstream) as gateway:
        heard = road.client().say("one", gateway.url, limit=LIMIT)
    heard.answered("answer end")
    equal_sealed(heard.rollout, 1, "answer summary")
    worked = [*ONE, "function_call exec_command", "function_call_output", "handoff"]
    return equal_told(upstream, ONE, worked, [*ONE, "summary: answer summary"])


def compacts_again(road: Road) -> str:
    script = (*BEFORE_TURN, answer("newer"), answer("third"))
    with ResponsesServer(script) as upstream, road.gateway(upstream) as gateway:
        client = road.client()
        heard = client.say("three", gateway.url, _compacted(road, client, gateway).rollout, limit=AT_ONCE)
    heard.answered("answer third")
    equal_sealed(heard.rollout, 2, "answer summary", "answer newer")
    window = COMPACTED[-1]
    # the fresh context stands before the last message that is kept
    after = ["base", "one", "context", "context", "two", "summary: answer newer", "three"]
    return equal_told(upstream, *COMPACTED, [*window, "answer second", "handoff"], after)


def compacts_by_itself(road: Road) -> str:
    """A provider of another name is not asked to compact: the gateway has nothing to do."""
    with ResponsesServer(BEFORE_TURN) as upstream, road.gateway(upstream) as gateway:
        heard = _compacted(road, road.client("another"), gateway)
    heard.answered("answer second")
    (checkpoint,) = [line["payload"] for line in lines_of(heard.rollout) if line["type"] == "compacted"]
    equal("items of the checkpoint", {item["type"] for item in checkpoint["replacement_history"]}, {"message"})
    return equal_told(upstream, *COMPACTED)


# --- (c) another process, other keys -------------------------------------------------------------------------------


def goes_on_after_restart(road: Road) -> str:
    client = road.client()
    with ResponsesServer((*BEFORE_TURN, answer("third"))) as upstream:
        with road.gateway(upstream) as gateway:
            rollout = _compacted(road, client, gateway).rollout
        with road.gateway(upstream) as gateway:
            client.say("three", gateway.url, rollout).answered("answer third")
    return equal_told(upstream, *COMPACTED, [*COMPACTED[-1], "answer second", "three"])


def is_told_of_other_keys(road: Road) -> str:
    """The error is clear, comes at once and is not repeated; with the right keys the session goes on."""
    client = road.client()
    with ResponsesServer((*BEFORE_TURN, answer("fourth"))) as upstream:
        with road.gateway(upstream) as gateway:
            rollout = _compacted(road, client, gateway).rollout
        with road.gateway(upstream, "other keys") as gateway:
            for limit in (None, AT_ONCE):
                client.say("three", gateway.url, rollout, limit=limit, retries=3).failed("invalid_encrypted_content")
            refused = gateway.counts()[ROUTES[road.transport], 400]
        with road.gateway(upstream) as gateway:
            client.say("four", gateway.url, rollout).answered("answer fourth")
    equal("requests that were refused, of two", refused, 2)
    return equal_told(upstream, *COMPACTED, [*COMPACTED[-1], "answer second", "three", "three", "four"])


# --- (d) calls that are no functions -------------------------------------------------------------------------------


def called(name: str, arguments: dict[str, Any], serial: str) -> Reply:
    """The call of a function, as a plain upstream makes it."""
    call = {"type": "function_call", "id": f"fc_{serial}", "call_id": f"call_{serial}", "name": name}
    item = {**call, "arguments": json.dumps(arguments)}
    return Reply(items=(item,), usage=usage(100, 10), response_id=f"resp_{serial}")


def patches(road: Road, *, lite: bool) -> str:
    """The real program's patch tool is a custom one; when it is lite, in a namespace of the item that brings tools."""
    space = "functions__" if lite else ""
    script = (
        called(f"{space}apply_patch", {"input": PATCH}, "p"),
        called(f"{space}exec_command", {"cmd": "cat greeting.txt"}, "c"),
        answer("end"),
    )
    client = road.client(apply_patch_tool_type="freeform", use_responses_lite=lite)
    with ResponsesServer(script) as upstream, road.gateway(upstream) as gateway:
        heard = client.say("one", gateway.url)
    heard.answered("answer end")
    equal("the file", (road.field.work / "greeting.txt").read_text(), "hello\n")
    equal("the call that the real program heard", item_of(heard.rollout, "custom_tool_call")["input"], PATCH)
    if not item_of(heard.rollout, "function_call_output")["output"].endswith("hello\n"):
        raise Differs("the command did not see the file")
    for request in upstream.requests:
        if f"{space}apply_patch" not in tools_of(request):
            raise Differs(f"the upstream was offered {sorted(tools_of(request))}")
    patched = [*ONE, f"function_call {space}apply_patch", "function_call_output"]
    looked = [*patched, f"function_call {space}exec_command", "function_call_output"]
    return equal_told(upstream, ONE, patched, looked)


def lite_compacts(road: Road) -> str:
    """The item that brings the tools is gone before each request, and the tools are there after a compaction."""
    client = road.client(use_responses_lite=True)
    with ResponsesServer(BEFORE_TURN) as upstream, road.gateway(upstream) as gateway:
        heard = _compacted(road, client, gateway)
    heard.answered("answer second")
    equal_sealed(heard.rollout, 1, "answer summary", beside=("additional_tools", "message"))
    offered = [bool(tools_of(request)) for request in upstream.requests]
    equal("whether tools were offered", offered, [True, False, True])
    return equal_told(upstream, *COMPACTED)


def runs_scripts(road: Road) -> str:
    """Code mode: a custom tool whose output is a list of parts."""
    script = (called("exec", {"input": "text(6 * 7)"}, "e"), answer("end"))
    with ResponsesServer(script) as upstream, road.gateway(upstream) as gateway:
        heard = road.client(tool_mode="code_mode_only").say("one", gateway.url)
    heard.answered("answer end")
    equal("the call that the real program heard", item_of(heard.rollout, "custom_tool_call")["input"], "text(6 * 7)")
    equal("the last part of the output", upstream.requests[1].input[-1]["output"][-1]["text"], "42")
    return equal_told(upstream, ONE, [*ONE, "function_call exec", "function_call_output"])


def searches_tools(road: Road) -> str:
    """A search that the client makes; the tools it finds are functions in the next request."""
    script = (called("tool_search", {"query": "spawn a new agent"}, "s"), answer("end"))
    client = road.client(supports_search_tool=True, web_search_tool_type="text")
    with ResponsesServer(script) as upstream, road.gateway(upstream) as gateway:
        heard = client.say("one", gateway.url)
    heard.answered("answer end")
    equal("what was searched", item_of(heard.rollout, "tool_search_call")["arguments"], {"query": "spawn a new agent"})
    found = tools_of(upstream.requests[1]) - tools_of(upstream.requests[0])
    if "multi_agent_v1__spawn_agent" not in found:
        raise Differs(f"new tools after the search: {sorted(found)}")
    return equal_told(upstream, ONE, [*ONE, "function_call tool_search", "function_call_output"])


def tells_shell_calls(road: Road) -> str:
    """A shell call of an older program, in a rollout that the real program resumes: it offers that tool no more."""
    client, script = road.client(), (calls("a", "echo one"), answer("first"), answer("second"))
    with ResponsesServer(script) as upstream, road.gateway(upstream) as gateway:
        rollout = client.say("one", gateway.url).rollout
        lines = lines_of(rollout)
        for line in lines:
            if line["payload"].get("type") == "function_call":
                action = {"type": "exec", "command": ["bash", "-lc", "echo one"], "timeout_ms": 1_000}
                call = {"id": "lsh_a", "call_id": "call_a_0", "status": "completed", "action": action}
                line["payload"] = {"type": "local_shell_call", **call}
        rollout.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        client.say("two", gateway.url, rollout).answered("answer second")
    arguments = json.loads(upstream.requests[2].input[len(ONE)]["arguments"])
    equal("what was run", arguments, {"command": ["bash", "-lc", "echo one"], "timeout_ms": 1_000})
    outcome = ["function_call_output", "answer first", "two"]
    equal("the request", told(upstream.requests[2]), [*ONE, "function_call local_shell", *outcome])
    return ""


# --- (e), (f) what goes wrong --------------------------------------------------------------------------------------


def understands_overflow(road: Road, error: dict[str, Any]) -> str:
    """The turn fails as with a window that is full, and the next one compacts first."""
    client = road.client()
    script = (answer("first"), overflow(error), answer("summary"), answer("third"))
    with ResponsesServer(script) as upstream, road.gateway(upstream) as gateway:
        rollout = client.say("one", gateway.url).rollout
        client.say("two", gateway.url, rollout, retries=2).failed(OUT_OF_ROOM)
        client.say("three", gateway.url, rollout).answered("answer third")
    equal_sealed(rollout, 1, "answer summary")
    full = [*ONE, "answer first", "two"]
    after = ["base", "one", "context", "context", "two", "summary: answer summary", "three"]
    return equal_told(upstream, ONE, full, [*full, "handoff"], after)


def leaves_overflow_of_compaction_to_gateway(road: Road) -> str:
    """A history that is too long to be summed up is the gateway's affair: it asks with less."""
    client = road.client()
    script = (answer("first", FULL), overflow(LLAMA_CPP), answer("summary"), answer("second"))
    with ResponsesServer(script) as upstream, road.gateway(upstream) as gateway:
        heard = _compacted(road, client, gateway)
    heard.answered("answer second")
    equal_sealed(heard.rollout, 1, "answer summary")
    less = told(upstream.requests[2])
    equal("what a request with less ends with", less[-1], "handoff")
    equal("whether it has less", len(less) < len(COMPACTED[1]), True)
    return equal_told(upstream, *COMPACTED[:2], less, COMPACTED[2])


def cut(reply: Reply, where: Literal["request", "partial_item", "items"]) -> Reply:
    return Reply(items=reply.items, usage=reply.usage, response_id="resp_cut", cut_after=where)


def asks_again(road: Road, where: Literal["request", "partial_item", "items"]) -> str:
    script = (cut(answer("lost"), where), answer("end"))
    with ResponsesServer(script) as upstream, road.gateway(upstream) as gateway:
        heard = road.client().say("one", gateway.url, retries=TRIES - 1)
    heard.answered("answer end")
    return equal_told(upstream, ONE, [*ONE, "answer lost"] if where == "items" else ONE)


def asks_again_for_compaction(road: Road) -> str:
    client = road.client()
    script = (answer("first", FULL), cut(answer("lost"), "partial_item"), answer("summary"), answer("second"))
    with ResponsesServer(script) as upstream, road.gateway(upstream) as gateway:
        first = client.say("one", gateway.url)
        heard = client.say("two", gateway.url, first.rollout, limit=LIMIT, retries=TRIES - 1)
    heard.answered("answer second")
    equal_sealed(heard.rollout, 1, "answer summary")
    return equal_told(upstream, COMPACTED[0], COMPACTED[1], *COMPACTED[1:])


def gives_up(road: Road) -> str:
    """An upstream that breaks off each time: after a WebSocket the real program tries HTTP, as with any provider."""
    with ResponsesServer(lambda _: cut(answer("lost"), "partial_item")) as upstream, road.gateway(upstream) as gateway:
        heard = road.client().say("one", gateway.url, retries=TRIES - 1)
    heard.failed("stream disconnected before completion")
    return equal_told(upstream, *[ONE] * (TRIES * (2 if road.transport == "WebSocket" else 1)))


# --- (g) with refold, through one gateway --------------------------------------------------------------------------


def hands_over(road: Road, to: Literal["refold", "real"]) -> str:
    """A session that one program compacted through the gateway: the other sends what it would send itself, and
    compacts again."""
    script = (*BEFORE_TURN, answer("third"), answer("third"), answer("newer"), answer("fourth"))
    with ResponsesServer(script) as upstream, road.gateway(upstream) as gateway:
        ours, client = road.field.ours(), road.client()
        provider = road.provider(gateway)

        def refold_says(said: str, rollout: Path | None = None, limit: int | None = None) -> Path:
            return ours.say(Turn(said, (), limit), provider, rollout)

        def real_says(said: str, rollout: Path | None = None, limit: int | None = None) -> Path:
            return client.say(said, gateway.url, rollout, limit=limit).rollout

        says = {"real": real_says, "refold": refold_says}
        homes = {"real": client.home, "refold": ours.home}
        by = "real" if to == "refold" else "refold"
        written = says[by]("two", says[by]("one"), LIMIT)
        equal_sealed(written, 1)
        known = ids_in(written)
        taken = copied(written, homes[to])
        sent: dict[str, Played] = {}
        for program, rollout in ((by, written), (to, taken)):
            says[program]("three", rollout)
            sent[program] = Played(program, [upstream.requests[-1].input], rollout)
        note = compare(sent[by], sent[to], known)
        says[to]("four", taken, AT_ONCE)
        equal_sealed(taken, 2)
        equal("how the gateway was asked", {route for route, _ in gateway.counts()}, {ROUTES[road.transport]})
    last, after = map(told, upstream.requests[-2:])
    equal(
        "summaries that are told while it compacts",
        [one for one in last if "summary" in one],
        ["summary: answer summary"],
    )
    equal("and after it", [one for one in after if "summary" in one], ["summary: answer newer"])
    equal("what both end with", [last[-1], after[-1]], ["handoff", "four"])
    return note


# --- all of them ---------------------------------------------------------------------------------------------------

CHECKS: dict[str, Callable[[Road], str]] = {
    "a turn with calls": answers,
    "compacts before a turn": compacts_before_turn,
    "compacts in mid-turn": compacts_in_mid_turn,
    "compacts twice": compacts_again,
    "compacts by itself": compacts_by_itself,
    "goes on with a gateway that was restarted": goes_on_after_restart,
    "is told of other keys": is_told_of_other_keys,
    "patches a file": lambda road: patches(road, lite=False),
    "patches a file, lite": lambda road: patches(road, lite=True),
    "compacts, lite": lite_compacts,
    "runs a script": runs_scripts,
    "searches for tools": searches_tools,
    "tells an older program's shell call": tells_shell_calls,
    "understands llama.cpp's overflow": lambda road: understands_overflow(road, LLAMA_CPP),
    "understands vLLM's overflow": lambda road: understands_overflow(road, VLLM),
    "compacts what is too long to be summed up": leaves_overflow_of_compaction_to_gateway,
    "asks again after no answer": lambda road: asks_again(road, "request"),
    "asks again after half an item": lambda road: asks_again(road, "partial_item"),
    "asks again after an answer without an end": lambda road: asks_again(road, "items"),
    "asks again for a compaction": asks_again_for_compaction,
    "gives up": gives_up,
    "refold resumes real's": lambda road: hands_over(road, "refold"),
    "real resumes refold's": lambda road: hands_over(road, "real"),
}


def through_gateway(folder: Path) -> Iterator[Result]:
    """Every check over each transport, in its own folder under `folder`."""
    numbers = itertools.count(1)
    transports: tuple[Transport, ...] = ("HTTP", "WebSocket")
    for transport in transports:
        for name, check in CHECKS.items():

            def made(check: Callable[[Road], str] = check, transport: Transport = transport) -> str:
                # a quote in a folder's name is one more thing that both programs have to tell alike
                return check(Road(Field(folder / f"gateway's {next(numbers)}"), transport))

            yield result(f"gateway, {transport}: {name}", made)
