"""A Responses request as a Chat Completions body: nothing that is said is lost, and every such server could take it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.chat_completions import ChatRequest, chat_request
from refold.core.chat_completions_settings import ChatSettings
from refold.core.chat_completions_tools import LONGEST_NAME, Called
from refold.core.items import OUTPUT_TYPE_OF, Item, function_call_output, message, output_for, user_message
from refold.core.jsonio import dump
from refold.errors import ModelRefused

LOOK = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": False}
PATCH = {"type": "custom", "name": "patch", "description": "Patches."}
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "original"}


def call(call_id: str, name: str = "look", arguments: str = "{}", **more: Any) -> Item:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def translated(items: Any, chat: ChatSettings | None = None, modalities: Any = ("text", "image"), **more: Any) -> Any:
    return chat_request({"model": "m", "input": items, **more}, chat, modalities=modalities)


def messages(items: Any, chat: ChatSettings | None = None, **more: Any) -> list[dict[str, Any]]:
    return translated(items, chat, **more).body["messages"]


def roles(said: list[dict[str, Any]]) -> list[str]:
    return [one["role"] for one in said]


# --- messages -----------------------------------------------------------------------------------------------


def test_a_text_is_what_the_user_says() -> None:
    assert messages("hi") == [{"role": "user", "content": "hi"}]


def test_messages_without_a_type_and_with_plain_content_are_messages() -> None:
    assert messages([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]) == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes"},
    ]


def test_instructions_and_what_developers_say_first_are_one_system_message() -> None:
    items = [message("developer", ["rules"]), user_message("hi"), message("developer", ["more rules"])]
    assert messages(items, instructions="base") == [
        {"role": "system", "content": "base\n\nrules"},
        {"role": "user", "content": "hi"},
        {"role": "user", "content": "more rules"},
    ]


def test_system_messages_stay_where_they_are_when_they_may_stand_anywhere() -> None:
    items = [user_message("hi"), message("developer", ["rules"]), message("system", ["law"])]
    said = messages(items, ChatSettings(system_place="anywhere", developer_role="developer"), instructions="base")
    assert roles(said) == ["developer", "user", "developer", "developer"]


def test_for_a_model_without_a_system_role_the_user_says_it_all() -> None:
    chat = ChatSettings(developer_role="user", alternate=True)
    items = [message("developer", ["rules"]), user_message("hi")]
    assert messages(items, chat, instructions="base") == [{"role": "user", "content": "base\n\nrules\n\nhi"}]


def test_neighbours_of_one_role_become_one_message_also_with_images() -> None:
    picture = {"type": "message", "role": "user", "content": [PICTURE]}
    said = messages([user_message("a"), picture, user_message("b")], ChatSettings(alternate=True))
    assert [part["type"] for part in said[0]["content"]] == ["text", "image_url", "text"]
    assert len(said) == 1


def test_images_keep_their_address_and_a_detail_that_the_other_api_has() -> None:
    low = {**PICTURE, "detail": "low"}
    said = messages([{"type": "message", "role": "user", "content": [PICTURE, low]}])
    url = PICTURE["image_url"]
    assert [part["image_url"] for part in said[0]["content"]] == [{"url": url}, {"url": url, "detail": "low"}]


def test_a_model_that_takes_no_images_is_told_that_there_was_one() -> None:
    said = messages([{"type": "message", "role": "user", "content": [PICTURE]}], modalities=("text",))
    assert said == [{"role": "user", "content": "image content omitted because you do not support image input"}]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "audio_url": "data:audio/mpeg;base64,QUJD"},
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}},
    ],
)
def test_audio_is_sent_as_data_and_format(part: dict[str, Any]) -> None:
    said = messages([{"type": "message", "role": "user", "content": [part]}], modalities=("text", "audio"))
    assert said[0]["content"] == [{"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}}]


def test_a_file_is_sent_when_it_is_in_the_request_and_told_when_it_is_not() -> None:
    here = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}
    there = {"type": "input_file", "file_url": "https://host/a.pdf"}
    request = translated([{"type": "message", "role": "user", "content": [here, there]}])
    first, second = request.body["messages"][0]["content"]
    assert first == {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}}
    assert second["text"] == "(file left out: it cannot be sent to this model)"
    assert any("input_file" in line for line in request.left_out)


def test_another_agents_words_are_said_by_the_user() -> None:
    parts = [{"type": "input_text", "text": "do it"}, {"type": "encrypted_content", "encrypted_content": "xx"}]
    said = messages([{"type": "agent_message", "author": "a", "recipient": "b", "content": parts}])
    assert said == [{"role": "user", "content": "do it"}]


@pytest.mark.parametrize("kind", ["compaction", "web_search_call", "image_generation_call", "of_tomorrow"])
def test_an_item_that_has_no_counterpart_is_left_out_and_told(kind: str) -> None:
    request = translated([user_message("hi"), {"type": kind, "encrypted_content": "x"}])
    assert roles(request.body["messages"]) == ["user"]
    assert any(kind in line for line in request.left_out)


# --- answers and calls ------------------------------------------------------------------------------------------


def test_text_and_calls_of_one_answer_are_one_message_and_outputs_follow_in_the_calls_order() -> None:
    outputs = [function_call_output("b", "two"), function_call_output("a", "one")]
    said = messages([user_message("hi"), message("assistant", ["so"]), call("a"), call("b"), *outputs])
    assert roles(said) == ["user", "assistant", "tool", "tool"]
    assert said[1]["content"] == "so"
    assert [one["id"] for one in said[1]["tool_calls"]] == ["a", "b"]
    assert [(one["tool_call_id"], one["content"]) for one in said[2:]] == [("a", "one"), ("b", "two")]


def test_a_call_after_an_output_is_another_answer() -> None:
    said = messages([call("a"), function_call_output("a", "1"), call("b"), function_call_output("b", "2")])
    assert roles(said) == ["assistant", "tool", "assistant", "tool"]


def test_what_the_user_said_before_the_output_came_stands_after_it() -> None:
    said = messages([call("a"), user_message("hurry"), function_call_output("a", "1")])
    assert roles(said) == ["assistant", "tool", "user"]
    assert said[1]["content"] == "1"


def test_a_call_that_was_never_answered_is_answered_and_an_output_of_no_call_is_told() -> None:
    request = translated([call("a"), user_message("hi"), function_call_output("z", "lost")])
    assert roles(request.body["messages"]) == ["assistant", "tool", "user"]
    assert request.body["messages"][1]["content"] == "aborted"
    assert any("'z'" in line for line in request.left_out)


def test_calls_of_one_answer_stay_together_when_none_of_them_was_answered() -> None:
    said = messages([call("a"), call("b"), user_message("stop")])
    assert roles(said) == ["assistant", "tool", "tool", "user"]


@pytest.mark.parametrize(("arguments", "sent"), [("", "{}"), (" ", "{}"), ("{oops", "{}"), ('{"a":1}', '{"a":1}')])
def test_arguments_are_an_object_as_templates_want_them(arguments: str, sent: str) -> None:
    said = messages([call("a", arguments=arguments)])
    assert said[0]["tool_calls"][0]["function"]["arguments"] == sent


def test_arguments_stay_as_they_are_when_that_is_asked_for() -> None:
    said = messages([call("a", arguments="{oops")], ChatSettings(repair_call_arguments=False))
    assert said[0]["tool_calls"][0]["function"]["arguments"] == "{oops"


def test_reasoning_is_dropped_and_told_or_sent_back_under_a_key() -> None:
    items = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, message("assistant", ["so"])]
    request = translated(items)
    assert request.body["messages"] == [{"role": "assistant", "content": "so"}]
    assert any("reasoning" in line for line in request.left_out)
    said = messages(items, ChatSettings(reasoning_as="reasoning_content"))
    assert said == [{"role": "assistant", "content": "so", "reasoning_content": "hm"}]


def test_what_was_thought_is_sent_rather_than_its_summary() -> None:
    summary, thought = {"type": "summary_text", "text": "short"}, {"type": "reasoning_text", "text": "long"}
    items = [{"type": "reasoning", "summary": [summary], "content": [thought]}, message("assistant", ["so"])]
    assert messages(items, ChatSettings(reasoning_as="reasoning"))[0]["reasoning"] == "long"


def test_reasoning_alone_is_no_message() -> None:
    items = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, user_message("hi")]
    assert roles(messages(items, ChatSettings(reasoning_as="reasoning_content"))) == ["user"]


def test_an_output_in_parts_is_one_text_and_its_images_follow_in_a_users_message() -> None:
    parts = [{"type": "input_text", "text": "a"}, PICTURE, {"type": "input_text", "text": "b"}]
    items = [call("a"), call("b"), function_call_output("a", parts), function_call_output("b", "ok")]
    said = messages(items)
    assert roles(said) == ["assistant", "tool", "tool", "user"]
    assert said[1]["content"].startswith("a\nb\n")
    assert [part["type"] for part in said[3]["content"]] == ["text", "image_url"]
    assert "look" in said[3]["content"][0]["text"]


def test_images_of_outputs_stay_in_the_tools_message_or_are_left_out() -> None:
    items = [call("a"), function_call_output("a", [{"type": "input_text", "text": "a"}, PICTURE])]
    inside = messages(items, ChatSettings(output_images="tool"))
    assert roles(inside) == ["assistant", "tool"]
    assert [part["type"] for part in inside[1]["content"]] == ["text", "image_url"]
    request = translated(items, ChatSettings(output_images="none"))
    assert request.body["messages"][1]["content"].startswith("a\n(image")
    assert any("images" in line for line in request.left_out)


# --- tools ------------------------------------------------------------------------------------------------------


def test_a_function_keeps_its_schema() -> None:
    request = translated("hi", tools=[LOOK, {**LOOK, "name": "see", "strict": True}])
    described = {"description": "Looks.", "parameters": {"type": "object"}}
    assert [tool["function"] for tool in request.body["tools"]] == [
        {"name": "look", **described},
        {"name": "see", **described, "strict": True},
    ]


def test_a_custom_tool_is_a_function_of_one_text_and_so_are_its_calls() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: {braces}"}
    asked = {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": 'say "hi"'}
    request = translated([asked, output_for(asked, "ok")], tools=[{**PATCH, "format": grammar}])
    parameters = request.body["tools"][0]["function"]["parameters"]
    assert parameters["required"] == ["input"]
    assert "start: {braces}" in parameters["properties"]["input"]["description"]
    said = request.body["messages"]
    assert json.loads(said[0]["tool_calls"][0]["function"]["arguments"]) == {"input": 'say "hi"'}
    assert said[1]["content"] == "ok"
    assert request.tools.meaning("patch") == Called("custom_tool_call", "patch")
    assert any("grammar" in line for line in request.left_out)


def test_a_namespace_is_part_of_the_name_in_tools_and_calls() -> None:
    spaces = [
        {"type": "namespace", "name": "mcp__docs__", "tools": [LOOK]},
        {"type": "namespace", "name": "web", "tools": [LOOK, PATCH]},
    ]
    request = translated([call("a", namespace="mcp__docs__"), call("b", namespace="gone")], tools=spaces)
    assert [tool["function"]["name"] for tool in request.body["tools"]] == [
        "mcp__docs__look",
        "web__look",
        "web__patch",
    ]
    assert request.tools.meaning("web__patch") == Called("custom_tool_call", "patch", "web")
    names = [one["function"]["name"] for one in request.body["messages"][0]["tool_calls"]]
    assert names == ["mcp__docs__look", "gone__look"]


def test_names_stay_short_and_different() -> None:
    long = {"type": "namespace", "name": "n" * 60, "tools": [{**LOOK, "name": name} for name in ("first", "second")]}
    twice = {"type": "namespace", "name": "a", "tools": [LOOK]}
    request = translated("hi", tools=[long, twice, {**LOOK, "name": "a__look"}])
    names = [tool["function"]["name"] for tool in request.body["tools"]]
    assert len(set(names)) == 4
    assert all(len(name) <= LONGEST_NAME for name in names)
    assert request.tools.meaning(names[3]) == Called("function_call", "a__look")


def test_the_local_shell_and_the_search_for_tools_are_functions() -> None:
    ran: Item = {
        "type": "local_shell_call",
        "call_id": "a",
        "action": {"type": "exec", "command": ["ls"], "user": None},
    }
    sought: Item = {"type": "tool_search_call", "call_id": "b", "execution": "client", "arguments": {"query": "q"}}
    found = {"type": "tool_search_output", "call_id": "b", "execution": "client", "tools": [LOOK]}
    search = {"type": "tool_search", "execution": "client", "description": "d", "parameters": {"type": "object"}}
    request = translated([ran, sought, output_for(ran, "x"), found], tools=[{"type": "local_shell"}, search])
    names = [tool["function"]["name"] for tool in request.body["tools"]]
    assert names == ["local_shell", "tool_search", "look"]  # what was found can be called
    functions = [one["function"] for one in request.body["messages"][0]["tool_calls"]]
    assert [(one["name"], json.loads(one["arguments"])) for one in functions] == [
        ("local_shell", {"command": ["ls"]}),
        ("tool_search", {"query": "q"}),
    ]
    assert json.loads(request.body["messages"][2]["content"]) == {"tools": ["look"]}


def test_tools_that_an_item_brings_are_offered() -> None:
    brought = {"type": "additional_tools", "role": "developer", "tools": [LOOK]}
    assert [tool["function"]["name"] for tool in translated([brought, user_message("hi")]).body["tools"]] == ["look"]


def test_hosted_tools_are_left_out_and_told() -> None:
    request = translated("hi", tools=[{"type": "web_search"}], tool_choice="auto", parallel_tool_calls=True)
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(request.body)
    assert request.left_out == ("tool 'web_search': only the Responses API has it",)


@pytest.mark.parametrize(
    ("choice", "sent", "offered"),
    [
        ("required", "required", ["look", "patch"]),
        ({"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}, ["look", "patch"]),
        ({"type": "custom", "name": "patch"}, {"type": "function", "function": {"name": "patch"}}, ["look", "patch"]),
        ({"type": "web_search"}, "auto", ["look", "patch"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [PATCH]}, "required", ["patch"]),
    ],
)
def test_a_choice_of_tools_is_said_in_the_other_apis_words(choice: Any, sent: Any, offered: list[str]) -> None:
    body = translated("hi", tools=[LOOK, PATCH], tool_choice=choice, parallel_tool_calls=False).body
    assert body["tool_choice"] == sent
    assert [tool["function"]["name"] for tool in body["tools"]] == offered
    assert body["parallel_tool_calls"] is False


# --- keys ---------------------------------------------------------------------------------------------------------


def test_settings_are_said_in_the_other_apis_words() -> None:
    schema = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}
    body = translated(
        "hi",
        stream=True,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": schema},
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.9,
        stop=["x"],
    ).body
    del body["messages"]
    assert body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "reasoning_effort": "low",
        "max_tokens": 5,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
        },
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["x"],
    }


def test_what_only_the_responses_api_has_is_left_out_told_and_sent_where_it_is_kept() -> None:
    more = {"prompt_cache_key": "k", "store": False, "include": ["x"], "metadata": {"a": "b"}, "truncation": None}
    request = translated("hi", **more)
    assert set(request.body) == {"model", "messages"}
    assert request.left_out == ("key 'prompt_cache_key': only the Responses API has it",)
    kept = translated("hi", ChatSettings(keep=("prompt_cache_key",)), **more)
    assert kept.body["prompt_cache_key"] == "k"
    assert kept.left_out == ()


def test_a_key_that_neither_api_is_known_for_is_sent_as_it_is() -> None:
    assert translated("hi", top_k=40).body["top_k"] == 40


def test_keys_that_a_server_does_not_take_can_be_left_out_and_lengths_be_named_anew() -> None:
    chat = ChatSettings(leave_out=("reasoning_effort",), max_tokens_as="max_completion_tokens", stream_usage=False)
    body = translated("hi", chat, stream=True, reasoning={"effort": "low"}, max_output_tokens=5).body
    assert set(body) == {"model", "messages", "stream", "max_completion_tokens"}


@pytest.mark.parametrize("key", ["previous_response_id", "conversation", "prompt"])
def test_what_stands_for_items_that_are_not_there_is_refused(key: str) -> None:
    with pytest.raises(ModelRefused, match=key) as caught:
        translated("hi", **{key: "x"})
    assert caught.value.status == 400


# --- any history ---------------------------------------------------------------------------------------------------

KINDS = st.sampled_from(sorted(OUTPUT_TYPE_OF))
TEXTS = st.text(max_size=8)
PARTS = st.lists(st.sampled_from([PICTURE, {"type": "input_text", "text": "seen"}]), max_size=3)


@st.composite
def calls(draw: st.DrawFn) -> Item:
    kind, asked = draw(KINDS), draw(TEXTS)
    body: Item = {
        "function_call": {"name": "look", "arguments": asked},
        "custom_tool_call": {"name": "patch", "input": asked},
        "local_shell_call": {"action": {"type": "exec", "command": [asked]}},
        "tool_search_call": {"execution": "client", "arguments": {"query": asked}},
    }[kind]
    return {"type": kind, "call_id": draw(st.sampled_from("abc")), **body}


OUTPUTS = st.builds(output_for, calls(), TEXTS | PARTS)
THOUGHTS = TEXTS.map(lambda text: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]})
SAID = st.builds(message, st.sampled_from(["user", "assistant", "developer"]), st.lists(TEXTS, max_size=2))
SETTINGS = st.builds(
    ChatSettings,
    developer_role=st.sampled_from(["system", "developer", "user"]),
    system_place=st.sampled_from(["front", "anywhere"]),
    alternate=st.booleans(),
    reasoning_as=st.sampled_from(["none", "reasoning_content"]),
    output_images=st.sampled_from(["user", "tool", "none"]),
)


def faults(request: ChatRequest) -> list[str]:
    """What a Chat Completions server would refuse."""
    found: list[str] = []
    waiting: list[str] = []
    ids: list[str] = []
    for one in request.body["messages"]:
        if one["role"] == "tool":
            if not waiting or waiting.pop(0) != one["tool_call_id"]:
                found.append("an output that does not follow its call")
        elif waiting:
            found.append("a call without its output behind it")
        for asked in one.get("tool_calls", ()):
            ids.append(asked["id"])
            waiting.append(asked["id"])
            if not isinstance(json.loads(asked["function"]["arguments"]), dict):
                found.append("arguments that are no object")
        if one["content"] is None and not one.get("tool_calls"):
            found.append("an empty message")
    found += ["a call without its output"] * len(waiting)
    return found + ["two calls of one id"] * (len(set(ids)) < len(ids))


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(st.lists(calls() | OUTPUTS | THOUGHTS | SAID, max_size=14), SETTINGS)
def test_any_history_makes_a_request_that_a_server_takes(history: list[Item], chat: ChatSettings) -> None:
    request = translated(history, chat, tools=[LOOK, PATCH])
    assert faults(request) == []
    said = request.body["messages"]
    if chat.system_place == "front" and chat.developer_role != "user":
        assert chat.developer_role not in roles(said[1:])
    assert json.loads(dump(request.body)) == request.body


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(st.lists(calls() | OUTPUTS | SAID, max_size=14))
def test_nothing_that_was_said_is_lost(history: list[Item]) -> None:
    told = dump(messages(history)).decode()
    for item in history:
        if item["type"] == "message":
            assert all(dump(part["text"]).decode()[1:-1] in told for part in item["content"])
