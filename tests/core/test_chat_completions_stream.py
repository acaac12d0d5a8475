"""Chunks as events: in order, complete, and the same however the answer was cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.chat_completions import ChatRequest, chat_request
from refold.core.chat_completions_settings import ChatSettings
from refold.core.chat_completions_stream import ChatDecoder, Event, response_of
from refold.core.jsonio import dump

TOOLS = [
    {"type": "function", "name": "look", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch"},
    {"type": "local_shell"},
    {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
    {"type": "namespace", "name": "mcp__docs", "tools": [{"type": "function", "name": "find", "parameters": {}}]},
]
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 5}}


def asked(chat: ChatSettings | None = None) -> ChatRequest:
    return chat_request({"model": "m", "input": "hi", "tools": TOOLS, "temperature": 0.5}, chat)


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def piece(arguments: str | None = None, name: str | None = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return chunk(
        tool_calls=[{**more, "function": {key: value for key, value in function.items() if value is not None}}]
    )


def decoded(*chunks: Any, chat: ChatSettings | None = None, done: bool = True) -> list[Event]:
    """The events of a whole stream, which are checked as a client would."""
    decoder = ChatDecoder(asked(chat), response_id="resp_1", created_at=7)
    events = [event for one in chunks for event in decoder.feed(one)]
    events += decoder.end(done=done)
    assert faults(events) == []
    return events


def last(*chunks: Any, **more: Any) -> dict[str, Any]:
    return decoded(*chunks, **more)[-1]["response"]


def kinds(events: list[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def items(*chunks: Any, **more: Any) -> list[dict[str, Any]]:
    """What the answer holds, without ids."""
    return [bare(item) for item in last(*chunks, **more)["output"]]


def bare(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in ("id", "call_id", "status")}


def texts(*chunks: Any, **more: Any) -> list[str]:
    return [
        "".join(part["text"] for part in item.get("content", item.get("summary"))) for item in items(*chunks, **more)
    ]


def faults(events: list[Event]) -> list[str]:
    """What a client that follows the stream event by event would trip over."""
    found: list[str] = []
    types = [event["type"] for event in events]
    if types[:2] != ["response.created", "response.in_progress"]:
        found.append("it does not begin with created and in_progress")
    if [event["sequence_number"] for event in events] != [*range(len(events))]:
        found.append("numbers that do not count")
    begun: dict[int, str] = {}
    done: dict[int, Any] = {}
    said: dict[tuple[Any, ...], str] = {}
    for event in events[2:-1]:
        kind, index = event["type"], event["output_index"]
        if kind == "response.output_item.added":
            if index != len(begun):
                found.append("an item out of order")
            begun[index] = event["item"]["id"]
        elif kind == "response.output_item.done":
            done[index] = event["item"]
            if event["item"]["id"] != begun.get(index):
                found.append("an item that did not begin")
        elif event["item_id"] != begun.get(index) or index in done:
            found.append("a piece of an item that is not open")
        key = (kind.rpartition(".")[0], index, event.get("content_index"), event.get("summary_index"))
        if kind.endswith(".delta"):
            said[key] = said.get(key, "") + event["delta"]
        elif kind.endswith(("text.done", "arguments.done", "input.done", "refusal.done")):
            whole = next(event[name] for name in ("text", "arguments", "input", "refusal") if name in event)
            if said.get(key, "") != whole:
                found.append(f"{kind} says other than its deltas")
    told = [item for item in events[-1]["response"]["output"] if item.get("status") != "incomplete"]
    if told != [done[index] for index in sorted(done) if done[index].get("status") != "incomplete"]:
        found.append("the last event holds other items than were told")
    return found


# --- events in their order ----------------------------------------------------------------------------------------


def test_a_text_is_told_event_by_event() -> None:
    events = decoded(chunk(role="assistant", content=""), chunk(content="Hel"), chunk(content="lo"), STOP)
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    message = events[-1]["response"]["output"][0]
    assert (message["role"], message["status"]) == ("assistant", "completed")
    assert message["content"] == [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}]


def test_the_response_repeats_what_was_asked_for() -> None:
    response = last(chunk(content="x"), STOP)
    assert (response["id"], response["created_at"], response["model"]) == ("resp_1", 7, "m")
    assert (response["tools"], response["temperature"], response["status"]) == (TOOLS, 0.5, "completed")


def test_the_first_events_come_with_the_first_chunk() -> None:
    decoder = ChatDecoder(asked(), response_id="resp_1", created_at=7)
    assert kinds(decoder.feed(chunk(role="assistant"))) == ["created", "in_progress"]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_thoughts_are_a_summary_before_the_text(key: str) -> None:
    events = decoded(chunk(**{key: "hm"}), chunk(**{key: "m"}), chunk(content="so"), STOP)
    assert kinds(events)[2:8] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
    ]
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]
    assert events[-1]["response"]["output"][0]["summary"] == [{"type": "summary_text", "text": "hmm"}]


def test_thoughts_can_be_told_as_what_they_are() -> None:
    events = decoded(chunk(reasoning="hm"), STOP, chat=ChatSettings(reasoning_to="content"))
    assert "reasoning_text.delta" in kinds(events)
    assert items(chunk(reasoning="hm"), STOP, chat=ChatSettings(reasoning_to="content")) == [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    ]


def test_a_server_that_says_thoughts_under_two_keys_says_them_once() -> None:
    assert texts(chunk(reasoning="hm", reasoning_content="hm"), STOP) == ["hm"]


def test_content_in_parts_is_read() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    assert texts(chunk(content=[thinking]), chunk(content=[{"type": "text", "text": "so"}]), STOP) == ["hm", "so"]


def test_a_refusal_is_a_part_of_the_message() -> None:
    content = items(chunk(content="well, "), chunk(refusal="I "), chunk(refusal="won't"), STOP)[0]["content"]
    assert [part["type"] for part in content] == ["output_text", "refusal"]
    assert content[1]["refusal"] == "I won't"


def test_white_space_around_a_call_is_no_message_and_before_a_text_is_part_of_it() -> None:
    around = (chunk(content="\n"), piece("{}", "look", index=0, id="a"), chunk(content="\n\n"), STOP)
    assert [item["type"] for item in items(*around)] == ["function_call"]
    assert texts(chunk(content="\n"), chunk(content=" "), chunk(content="x\n"), STOP) == ["\n x\n"]


def test_an_empty_answer_completes_with_nothing() -> None:
    assert kinds(decoded(chunk(role="assistant", content=""), STOP)) == ["created", "in_progress", "completed"]


def test_only_the_first_choice_is_read() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": None}]}
    assert texts(other, chunk(content="yes"), STOP) == ["yes"]


# --- calls ----------------------------------------------------------------------------------------------------------


def test_a_call_is_told_piece_by_piece() -> None:
    events = decoded(piece("", "look", index=0, id="a"), piece('{"x"', index=0), piece(":1}", index=0), STOP)
    assert kinds(events)[2:] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert events[2]["item"]["call_id"] == "a"
    assert (events[2]["item"]["name"], events[2]["item"]["arguments"]) == ("look", "")
    assert events[-1]["response"]["output"][0]["arguments"] == '{"x":1}'


def arguments(*chunks: Any) -> list[tuple[str, str]]:
    return [(item["name"], item["arguments"]) for item in items(*chunks, STOP)]


TWO = [("look", '{"a":1}'), ("look", '{"b":2}')]


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(
            [
                piece("", "look", index=0, id="a"),
                piece("", "look", index=1, id="b"),
                piece('{"a":', index=0),
                piece('{"b":', index=1),
                piece("1}", index=0),
                piece("2}", index=1),
            ],
            id="in turns",
        ),
        pytest.param(
            [piece('{"a":1}', "look", index=0), piece('{"b":2}', "look", index=1)],
            id="whole, without ids",
        ),
        pytest.param(
            [piece('{"a":1}', "look", index=0, id="a"), piece('{"b":2}', "look", index=0, id="b")],
            id="every call at index 0",
        ),
        pytest.param([piece('{"a":1}', "look"), piece('{"b":2}', "look")], id="whole, without index and id"),
        pytest.param(
            [piece('{"a":', "look"), piece("1}"), piece('{"b":', "look"), piece("2}")],
            id="in pieces, without index and id",
        ),
        pytest.param(
            [
                piece('{"a"', "look", id="a"),
                piece('{"b"', "look", id="b"),
                piece(":1}", id="a"),
                piece(":2}", id="b"),
            ],
            id="in turns, by id alone",
        ),
        pytest.param(
            [
                piece('{"a":', "look", index=0, id="a"),
                piece("1}", "look", index=0, id="a"),
                piece('{"b":', "look", index=1, id="b"),
                piece("2}", "look", index=1, id="b"),
            ],
            id="name and id in every piece",
        ),
        pytest.param(
            [piece('{"a":', "look"), piece("1}", "look"), piece('{"b":', "look"), piece("2}", "look")],
            id="name in every piece, without index and id",
        ),
        pytest.param(
            [
                piece("", "", index=0, id="a"),
                piece('{"a"', index=0),
                piece(":1}", "look", index=0),
                piece('{"b":2}', "look", index=1),
            ],
            id="the name comes last",
        ),
        pytest.param(
            [chunk(tool_calls=[{"function": {"name": "look", "arguments": {k: v}}}]) for k, v in (("a", 1), ("b", 2))],
            id="arguments as objects",
        ),
    ],
)
def test_two_calls_are_two_calls_however_a_server_says_them(chunks: list[Any]) -> None:
    assert arguments(*chunks) == TWO


def test_every_call_has_an_id_of_its_own() -> None:
    same = [piece("{}", "look", index=number, id="a") for number in range(2)]
    output = last(*same, piece("{}", "look", index=2), STOP)["output"]
    ids = [item["call_id"] for item in output]
    assert ids[0] == "a"
    assert len({*ids, *(item["id"] for item in output)}) == 6


def test_no_arguments_are_an_empty_object() -> None:
    assert arguments(piece("", "look", index=0, id="a")) == [("look", "{}")]


def test_a_call_that_never_had_a_name_is_none() -> None:
    assert arguments(piece('{"a":1}', index=0, id="a"), piece("{}", "look", index=1, id="b")) == [("look", "{}")]


def test_a_custom_tool_comes_back_as_one() -> None:
    events = decoded(piece('{"inp', "patch", index=0, id="a"), piece('ut":"say \\"hi\\""}', index=0), STOP)
    assert kinds(events)[2:] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    call = events[-1]["response"]["output"][0]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "patch", 'say "hi"')


@pytest.mark.parametrize(
    ("given_text", "read"),
    [
        ('{"input":"x"}', "x"),
        ('{"patch":"x"}', "x"),  # a model that names it otherwise
        ("*** Begin", "*** Begin"),  # a model that says it plainly
        ('"x"', "x"),
        ('{"a":1}', '{"a":1}'),
        ("", ""),
    ],
)
def test_a_custom_tools_input_is_found_where_a_model_puts_it(given_text: str, read: str) -> None:
    assert items(piece(given_text, "patch", index=0, id="a"), STOP)[0]["input"] == read


def test_the_local_shell_the_search_for_tools_and_namespaces_come_back_as_they_were() -> None:
    shell = piece('{"command":["ls"],"timeout_ms":5}', "local_shell", index=0, id="a")
    search = piece('{"query":"q"}', "tool_search", index=1, id="b")
    found = piece("{}", "mcp__docs__find", index=2, id="c")
    action = {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": 5}
    assert items(shell, search, found, STOP) == [
        {"type": "local_shell_call", "action": action},
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "q"}},
        {"type": "function_call", "name": "find", "namespace": "mcp__docs", "arguments": "{}"},
    ]


def test_a_command_that_is_one_text_is_given_to_a_shell() -> None:
    call = items(piece('{"command":"ls | wc"}', "local_shell", index=0, id="a"), STOP)[0]
    assert call["action"]["command"] == ["bash", "-lc", "ls | wc"]


def test_a_tool_that_was_not_offered_is_a_function() -> None:
    assert arguments(piece("{}", "invented", index=0, id="a")) == [("invented", "{}")]


# --- ends -----------------------------------------------------------------------------------------------------------


def test_usage_comes_in_a_last_chunk_without_choices() -> None:
    usage = last(chunk(content="x"), STOP, {"choices": [], "usage": USAGE})["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (9, 4, 13)
    assert usage["input_tokens_details"]["cached_tokens"] == 5


@pytest.mark.parametrize(
    "told",
    [
        {"choices": [], "usage": {**USAGE, "prompt_tokens_details": None, "prompt_cache_hit_tokens": 5}},
        {"choices": [], "x_groq": {"usage": USAGE}},
        {"choices": [{"index": 0, "delta": {}, "usage": USAGE}]},
    ],
)
def test_usage_is_found_where_servers_tell_it(told: dict[str, Any]) -> None:
    usage = last(chunk(content="x"), STOP, told)["usage"]
    assert (usage["total_tokens"], usage["input_tokens_details"]["cached_tokens"]) == (13, 5)


def test_a_server_that_tells_no_usage_has_none() -> None:
    assert last(chunk(content="x"), STOP, {"choices": [], "usage": None})["usage"] is None


@pytest.mark.parametrize(
    ("finish_reason", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_an_answer_that_was_cut_is_incomplete(finish_reason: str, reason: str) -> None:
    events = decoded(chunk(content="half"), chunk(finish_reason))
    assert kinds(events)[-2:] == ["output_item.done", "incomplete"]
    assert events[-2]["item"]["status"] == "incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": reason}


def test_a_call_that_was_cut_is_never_told_as_done() -> None:
    events = decoded(piece('{"a', "look", index=0, id="a"), chunk("length"))
    assert "output_item.done" not in kinds(events)
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("finish_reason", ["stop", "tool_calls", "function_call", "eos", "of_tomorrow"])
def test_any_other_reason_completes(finish_reason: str) -> None:
    assert last(chunk(content="x"), chunk(finish_reason))["status"] == "completed"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        ({"error": {"message": "too long", "code": "context_length_exceeded"}}, "context_length_exceeded", "too long"),
        ({"error": {"message": "slow", "code": 429}}, "rate_limit_exceeded", "slow"),
        (
            {"error": {"message": "m", "code": 400, "type": "exceed_context_size_error"}},
            "exceed_context_size_error",
            "m",
        ),
        ({"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, "BadRequestError", "bad"),
        ({"error": "out of memory"}, "server_error", "out of memory"),
        ({"error": {}}, "server_error", "the server failed"),
    ],
)
def test_an_error_in_the_stream_fails_the_response(error: dict[str, Any], code: str, text: str) -> None:
    events = decoded(chunk(content="half"), error, STOP)
    assert kinds(events)[-1] == "failed"
    told = events[-1]["response"]["error"]
    assert (told["code"], told["message"]) == (code, text)


def test_a_reason_that_finishes_nothing_fails_the_response() -> None:
    assert last(chunk(content="half"), chunk("error"))["status"] == "failed"


def test_a_stream_that_just_stops_fails_unless_it_had_finished() -> None:
    assert last(chunk(content="half"), done=False)["status"] == "failed"
    assert last(chunk(content="whole"), STOP, done=False)["status"] == "completed"
    assert last(chunk(content="whole"), done=True)["status"] == "completed"  # a server that says [DONE] but not why


def test_nothing_is_said_after_the_end() -> None:
    decoder = ChatDecoder(asked(), response_id="resp_1", created_at=7)
    assert kinds(decoder.feed_data("[DONE]"))[-1] == "completed"
    assert decoder.feed(chunk(content="x")) == []
    assert decoder.feed_data("[DONE]") == []


@pytest.mark.parametrize("data", ["", "{", "[]", "null", ": ping", '"x"'])
def test_data_that_is_no_chunk_says_nothing(data: str) -> None:
    assert ChatDecoder(asked(), response_id="resp_1", created_at=7).feed_data(data) == []


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"choices": None},
        {"choices": [None, 5]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": 5, "tool_calls": [None, {}, {"function": None}, {"index": "x"}]}}]},
        {"choices": [{"delta": {"tool_calls": {"a": 1}, "reasoning": {"x": 1}}, "finish_reason": 5}]},
        {"usage": 5},
    ],
)
def test_odd_chunks_say_nothing(odd: Any) -> None:
    assert kinds(decoded(odd, STOP)) == ["created", "in_progress", "completed"]


# --- documents --------------------------------------------------------------------------------------------------------


def answer(document: Any, chat: ChatSettings | None = None) -> dict[str, Any]:
    return response_of(document, asked(chat), response_id="resp_1", created_at=7)


def whole(**message: Any) -> dict[str, Any]:
    return {
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}],
        "usage": USAGE,
    }


def test_a_document_is_a_response() -> None:
    calls = [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}] * 2
    response = answer(whole(content="so", reasoning_content="hm", tool_calls=calls))
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert (response["status"], response["usage"]["total_tokens"]) == ("completed", 13)
    assert len({item["call_id"] for item in response["output"][2:]}) == 2


@pytest.mark.parametrize("document", [{"error": {"message": "no"}}, {}, {"choices": []}, None, [], "x"])
def test_a_document_without_an_answer_is_a_failed_response(document: Any) -> None:
    response = answer(document)
    assert response["status"] == "failed"
    assert response["error"]["message"]


# --- any cutting ------------------------------------------------------------------------------------------------------

JSON = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=6), max_size=3)
CALLS = st.tuples(
    st.sampled_from(["look", "patch", "mcp__docs__find", "invented"]), JSON.map(lambda v: dump(v).decode())
)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """A text in pieces, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def in_turns(draw: st.DrawFn, calls: list[tuple[str, str]]) -> list[Any]:
    """The pieces of all calls, mixed, each call's own in order; calls begin in theirs."""
    waiting = [
        [{"index": n, "function": {"arguments": part}} for part in draw(cut(text))] for n, (_, text) in enumerate(calls)
    ]
    for number, (name, _) in enumerate(calls):
        first = waiting[number][0]
        first["id"] = f"call_{number}"
        first["function"]["name"] = name
    mixed: list[Any] = []
    begun = 0
    while any(waiting):
        open_calls = [number for number in range(min(begun + 1, len(waiting))) if waiting[number]]
        number = draw(st.sampled_from(open_calls))
        begun = max(begun, number + 1)
        mixed.append(waiting[number].pop(0))
    return mixed


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(st.text(max_size=12), st.text(max_size=12), st.lists(CALLS, max_size=3), st.data())
def test_an_answer_is_the_same_however_it_was_cut(
    thought: str, text: str, calls: list[tuple[str, str]], data: st.DataObject
) -> None:
    said = [{"id": f"call_{n}", "function": {"name": name, "arguments": args}} for n, (name, args) in enumerate(calls)]
    expected = answer(whole(content=text, reasoning_content=thought, tool_calls=said))
    chunks = [chunk(reasoning_content=part) for part in data.draw(cut(thought))]
    chunks += [chunk(content=part) for part in data.draw(cut(text))]
    pieces = data.draw(in_turns(calls))
    while pieces:  # one or several in a chunk
        count = data.draw(st.integers(1, 2))
        chunks.append(chunk(tool_calls=pieces[:count]))
        pieces = pieces[count:]
    response = last(*chunks, STOP, {"choices": [], "usage": USAGE})
    assert {**response, "output": None} == {**expected, "output": None}
    assert response["output"] == expected["output"]
    assert json.loads(json.dumps(response)) == response
