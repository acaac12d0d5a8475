"""run: a real process against the scripted provider, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from refold.testing import Reply, ResponsesServer, call_reply, text_reply

DATA = Path(__file__).parents[1] / "data" / "oracle"
EVENTS = json.loads((DATA / "exec_events.json").read_bytes())
EXEC = "exec_command"


def run_of(scenario: str, number: int) -> list[Reply]:
    """The recorded replies of one process."""
    document = json.loads((DATA / "scenarios" / f"{scenario}.json").read_bytes())
    return [Reply.from_json(exchange["response"]) for exchange in document["runs"][number]["exchanges"]]


# --- for people ------------------------------------------------------------------------------------------------------


def test_answer_is_all_that_standard_output_holds(machine):
    with ResponsesServer(["hello there"]) as server:
        machine.connect(server)
        ended = machine.refold("run", "say hello")
    assert (ended.status, ended.out) == (0, "hello there\n")
    records = machine.records()
    session_id = records[0]["payload"]["id"]
    assert session_id in ended.err and machine.rollout.name.endswith(f"-{session_id}.jsonl")
    assert [record["ordinal"] for record in records] == list(range(len(records)))
    assert records[-1]["payload"]["type"] == "task_complete"
    assert "tokens" in ended.err
    assert machine.said(server.requests[0], "user") == ["say hello"]


def test_command_and_its_result_are_told_beside_the_answer(machine):
    with ResponsesServer([call_reply(EXEC, {"cmd": "echo one; exit 3"}), "done"]) as server:
        machine.connect(server)
        ended = machine.refold("run", "go", "--allow-exec")
    assert (ended.status, ended.out) == (0, "done\n")
    for told in ("▸ echo one; exit 3", "    one", "exit 3"):
        assert told in ended.err


def test_message_is_read_from_standard_input(machine):
    with ResponsesServer(["ok"]) as server:
        machine.connect(server)
        assert machine.refold("run", "-", said="Grüße\nund mehr\n").status == 0
    assert machine.said(server.requests[0], "user") == ["Grüße\nund mehr\n"]


def test_options_choose_model_setting_and_folder(machine, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "AGENTS.md").write_text("Be brief.")
    with ResponsesServer(["ok"]) as server:
        machine.connect(server)
        options = ["-m", "gpt-5.5", "-c", "model_reasoning_effort=high", "--cd", "../elsewhere"]
        assert machine.refold("run", "hi", *options).status == 0
    body = server.requests[0].json
    assert body["model"] == "gpt-5.5"
    assert body["reasoning"]["effort"] == "high"
    assert f"# AGENTS.md instructions for {tmp_path}" in json.dumps(body["input"])
    assert Path(machine.records()[0]["payload"]["cwd"]).resolve() == tmp_path / "elsewhere"


def test_key_and_address_of_the_environment_are_enough(machine):
    with ResponsesServer(["ok"]) as server:
        ended = machine.refold("run", "hi", OPENAI_API_KEY="sk-test", OPENAI_BASE_URL=server.url)
    assert ended.status == 0
    assert server.requests[0].header("authorization") == "Bearer sk-test"


def test_unknown_model_is_one_notice(machine):
    with ResponsesServer(["ok", "ok"]) as server:
        machine.connect(server)
        ended = machine.refold("run", "hi", "-m", "nobody-knows-it")
        told = machine.refold("run", "hi", "-m", "nobody-knows-it", "--json")
    assert ended.status == told.status == 0
    [notice] = [line for line in ended.err.splitlines() if "nobody-knows-it" in line and line.startswith("•")]
    assert "is not a model I know" in notice
    [error] = [event["item"] for event in told.events if event.get("item", {}).get("type") == "error"]
    assert error["message"] in notice
    assert told.err == ""


def test_nothing_that_a_model_says_controls_the_terminal(machine):
    evil = "\x1b]0;title\x07\x1b[2J\x9b1m\rok"
    script = [call_reply(EXEC, {"cmd": "printf '\\033[31mred\\r\\n' # \x1b[2J"}), text_reply(evil)]
    with ResponsesServer([*script, Reply(status=400, body={"error": {"message": f"no {evil}"}})]) as server:
        machine.connect(server)
        ended = machine.refold("run", "hi", "--allow-exec")
        failed = machine.refold("run", "hi")
    assert ended.out == "]0;title[2J1mok\n"
    for text in (ended.err, failed.err, failed.out):
        assert not {"\x1b", "\x07", "\x9b", "\r"} & set(text)


# --- commands need leave ---------------------------------------------------------------------------------------------


def test_model_gets_no_command_tool_without_leave(machine):
    with ResponsesServer(["ok"] * 5) as server:
        machine.connect(server)
        ended = machine.refold("run", "hi")
        machine.refold("run", "hi", "--allow-exec")
        machine.refold("run", "hi", "-c", 'sandbox_mode="danger-full-access"', "-c", "approval_policy=never")
        machine.refold("run", "hi", "--json")
    offered = [[tool["name"] for tool in request.json.get("tools", [])] for request in server.requests]
    hands = [EXEC, "view_image", "write_stdin"]
    assert offered == [[], hands, hands, []]
    assert [line for line in ended.err.splitlines() if line.startswith("• ") and "--allow-exec" in line]


# --- for programs ----------------------------------------------------------------------------------------------------


def the_same(events: list[dict[str, Any]], recorded: list[dict[str, Any]]) -> bool:
    """Whether events are the recorded ones: same objects in the same order, save who of two commands ends first."""

    def ends(one: dict[str, Any]) -> bool:
        return one["type"] == "item.completed" and one["item"]["type"] == "command_execution"

    assert [one for one in events if not ends(one)] == [one for one in recorded if not ends(one)]
    assert sorted((one["item"]["id"], one["item"]) for one in events if ends(one)) == sorted(
        (one["item"]["id"], one["item"]) for one in recorded if ends(one)
    )
    for one in events:
        if ends(one):
            start = next(i for i, other in enumerate(events) if other.get("item", {}).get("id") == one["item"]["id"])
            assert events[start]["type"] == "item.started" and start < events.index(one)
    return True


def named(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events with the recordings' placeholder for the thread, without refold's own."""
    own = [event for event in events if not event["type"].startswith("refold.")]
    return [{**event, "thread_id": "#1"} if "thread_id" in event else event for event in own]


def test_events_of_one_turn_are_the_recorded_ones(machine):
    with ResponsesServer(run_of("a_one_turn", 0)) as server:
        machine.connect(server)
        ended = machine.refold("run", "--json", "say hello")
    assert (ended.status, ended.err) == (0, "")
    assert ended.thread_id == machine.records()[0]["payload"]["id"]
    assert named(ended.events) == EVENTS["a_one_turn/run0"]
    assert [list(event) for event in ended.events] == [list(event) for event in EVENTS["a_one_turn/run0"]]


def test_events_of_tool_calls_are_the_recorded_ones(machine):
    replies = run_of("b_tool_loop", 0)
    assert "yield_time_ms" in str(replies.pop(4).items)  # a command that goes on in the background: not yet
    recorded = [event for event in EVENTS["b_tool_loop/run0"] if event.get("item", {}).get("id") != "item_5"]
    recorded[-2] = {**recorded[-2], "item": {**recorded[-2]["item"], "id": "item_5"}}
    used = recorded[-1]["usage"]
    recorded[-1] = {
        **recorded[-1],
        "usage": {**used, "input_tokens": used["input_tokens"] - 240, "output_tokens": used["output_tokens"] - 10},
    }
    with ResponsesServer(replies) as server:
        machine.connect(server)
        ended = machine.refold("run", "--json", "--allow-exec", "use the tools")
    assert (ended.status, ended.err) == (0, "")
    assert the_same(named(ended.events), recorded)
    own = [event for event in ended.events if event["type"].startswith("refold.")]
    assert [event["type"] for event in own] == ["refold.tool.started", "refold.tool.completed"] * 2
    assert [event["tool"] for event in own] == ["no_such_tool", "no_such_tool", EXEC, EXEC]
    assert [event.get("status") for event in own] == [None, "failed"] * 2


def test_events_of_a_compaction_in_mid_turn_are_the_recorded_ones(machine):
    with ResponsesServer([*run_of("e_midturn", 0), *run_of("e_midturn", 1)]) as server:
        machine.connect(server, "model_auto_compact_token_limit = 1000")
        first = machine.refold("run", "--json", "user message 1")
        ended = machine.refold("resume", "--json", "--allow-exec", first.thread_id, "user message 2")
    assert (ended.status, ended.err) == (0, "")
    # Ours says first, once, that 1,000 tokens are less than what every request holds.
    warned = [event for event in ended.events if "every request holds" in str(event)]
    assert [event["item"]["id"] for event in warned] == ["item_0"]
    told = [event for event in ended.events if event not in warned]
    for event in told:
        if "item" in event:
            event["item"]["id"] = f"item_{int(event['item']['id'].removeprefix('item_')) - 1}"
    assert the_same(named(told), EVENTS["e_midturn/run1"])
    assert ended.thread_id == first.thread_id
    started, completed = (event for event in ended.events if event["type"].startswith("refold."))
    assert started["type"] == "refold.compaction.started" and started["phase"] == "mid_turn"
    assert completed["type"] == "refold.compaction.completed" and completed["installed"]
    assert completed["tokens_before"] > completed["tokens_after"]


def test_events_of_a_failing_provider_have_the_recorded_types(machine):
    with ResponsesServer(lambda _: Reply(status=500, body={"error": {"message": "boom"}})) as server:
        machine.connect(server)
        settings = ["-c", "model_providers.x.stream_max_retries=2"]
        ended = machine.refold("run", "--json", "hi", *settings)
    assert (ended.status, ended.err) == (1, "")
    recorded = EVENTS["f_500_all/run3"]
    assert [(event["type"], list(event)) for event in ended.events] == [
        (event["type"], list(event)) for event in recorded
    ]
    for number, event in enumerate(ended.events[2:4], 1):
        assert event["message"].startswith(f"Reconnecting... {number}/2 (")
    assert ended.events[-1]["error"]["message"] == ended.events[-2]["message"]
    assert machine.records()[-1]["payload"]["error"]["message"] == ended.events[-2]["message"]


def test_every_line_for_programs_is_json_even_of_an_error(machine):
    ended = machine.refold("run", "--json", "hi", "-c", "model_context_window=big")
    assert ended.status == 2
    [error] = ended.events
    assert error == {"type": "error", "message": ended.only_complaint.removeprefix("refold: ")}


def test_an_image_and_a_schema_go_with_the_message(machine):
    (machine.work / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n....")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    (machine.work / "s.json").write_text(json.dumps(schema))
    with ResponsesServer(['{"n": 1}']) as server:
        machine.connect(server)
        ended = machine.refold("run", "-i", "p.png", "--output-schema", "s.json", "how many?")
        assert (ended.status, ended.out) == (0, '{"n": 1}\n')
    body = server.requests[0].json
    assert body["text"]["format"] == {
        "type": "json_schema",
        "strict": True,
        "schema": schema,
        "name": "codex_output_schema",
    }
    assert [part["type"] for part in body["input"][-1]["content"]] == [
        "input_text",
        "input_image",
        "input_text",
        "input_text",
    ]


def test_a_file_that_is_no_image_or_no_schema_is_named_before_anything_is_sent(machine):
    (machine.work / "x").write_text("not JSON")
    with ResponsesServer(["never"]) as server:
        machine.connect(server)
        for words in (("-i", "x"), ("-i", "missing.png"), ("--output-schema", "x"), ("--output-schema", "missing")):
            ended = machine.refold("run", *words, "hi")
            assert ended.status != 0
            assert words[1] in ended.complaint
        assert server.requests == []


def test_a_limit_ends_the_turn_and_says_so(machine):
    with ResponsesServer([call_reply(EXEC, {"cmd": "true"})] * 3) as server:
        machine.connect(server)
        ended = machine.refold("run", "go", "--allow-exec", "-c", "limits.turn_steps=2")
    assert ended.status == 1
    assert "steps of this turn: 2 of 2 used" in ended.complaint
    assert len(server.requests) == 2
