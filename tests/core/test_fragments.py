"""Injected context is told from what a person typed: by what an item says, else by its text."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.fragments import (
    KIND_ENVIRONMENT,
    KIND_SUMMARY,
    KIND_TYPED,
    SUMMARY_MARK,
    USER_CONTEXT_STARTS,
    in_turn,
    looks_like_context,
    looks_like_developer_context,
    origin_of,
    stored_message,
    tagged,
    turn_of,
)
from refold.core.items import PASSTHROUGH, message
from refold.core.templates import template

ENVIRONMENT = "<environment_context>\n  <cwd>/w</cwd>\n</environment_context>"


def said(*texts: str, kinds: Any = None, role: Any = "user") -> dict[str, Any]:
    item = message(role, texts)
    return item if kinds is None else {**item, PASSTHROUGH: {"content_item_kinds": kinds}}


def test_a_tag_adds_nothing_around_its_body() -> None:
    assert tagged("x y", " b ") == "<x y> b </x y>"


def test_a_stored_message_says_what_each_part_is_and_which_turn_it_belongs_to() -> None:
    item = stored_message("user", [("a.b", "one"), ("c.d", "two")], id="msg_1", turn_id="t1")
    assert list(item) == ["type", "id", "role", "content", PASSTHROUGH]
    assert [part["text"] for part in item["content"]] == ["one", "two"]
    assert item[PASSTHROUGH] == {"turn_id": "t1", "content_item_kinds": ["a.b", "c.d"]}
    assert turn_of(item) == "t1"
    assert "turn_id" not in stored_message("user", [], id="msg_1", turn_id=None)[PASSTHROUGH]


def test_an_item_is_given_its_turn_once() -> None:
    item = in_turn({"type": "reasoning", PASSTHROUGH: {"create_time": 5}}, "t1")
    assert item[PASSTHROUGH] == {"create_time": 5, "turn_id": "t1"}
    assert in_turn(item, "t2") is item
    assert in_turn({"type": "reasoning"}, None) == {"type": "reasoning"}
    assert turn_of(in_turn({"type": "reasoning", PASSTHROUGH: "odd"}, "t3")) == "t3"


# --- what an item says is believed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "origin"),
    [
        ([KIND_TYPED], "typed"),
        (["user.text", "user.image"], "typed"),
        ([KIND_SUMMARY], "summary"),
        ([KIND_ENVIRONMENT], "injected"),
        (["session_start_hook.output"], "hook"),
    ],
)
def test_the_stated_kind_decides(kinds: list[str], origin: str) -> None:
    assert origin_of(said("any text", kinds=kinds)) == origin


def test_typed_text_that_begins_like_context_stays_typed_when_the_item_says_so() -> None:
    assert origin_of(said(ENVIRONMENT, kinds=[KIND_TYPED])) == "typed"
    assert origin_of(said(SUMMARY_MARK + "mine", kinds=[KIND_TYPED])) == "typed"


@pytest.mark.parametrize("kinds", [[], None, ["unknown"], "user.text", 5])
def test_an_item_that_does_not_say_is_read(kinds: Any) -> None:
    assert origin_of(said(ENVIRONMENT, kinds=kinds)) == "injected"
    assert origin_of(said("hello", kinds=kinds)) == "typed"


# --- only what does not say is recognised by its text -------------------------------------------------------


@pytest.mark.parametrize("start", USER_CONTEXT_STARTS)
@pytest.mark.parametrize("shape", ["{}", "  \n{}", "{} and more"])
def test_every_known_beginning_is_recognised(start: str, shape: str) -> None:
    assert looks_like_context(shape.format(start))
    assert looks_like_context(shape.format(start.upper()))


@pytest.mark.parametrize("text", ["", "hello", "see <environment_context>", "environment_context", "<image>"])
def test_other_text_is_not_context(text: str) -> None:
    assert not looks_like_context(text)


def test_one_part_of_context_makes_the_whole_message_context() -> None:
    assert origin_of(said("hello", ENVIRONMENT)) == "injected"


def test_a_hook_speaks_only_where_every_part_is_a_hooks() -> None:
    assert origin_of(said("<hook_prompt>a", " <HOOK_PROMPT id=1>b")) == "hook"
    assert origin_of(said("<hook_prompt>a", ENVIRONMENT)) == "injected"


def test_a_summary_begins_with_the_prefix_and_a_newline() -> None:
    assert template("summary_prefix") + "\n" == SUMMARY_MARK
    assert origin_of(said(SUMMARY_MARK)) == "summary"
    assert origin_of(said(template("summary_prefix"))) == "typed"


@pytest.mark.parametrize(
    ("item", "origin"),
    [
        ({"type": "message", "role": "assistant"}, "model"),
        ({"type": "message", "role": "developer"}, "injected"),
        ({"type": "message", "role": "user", "content": None}, "typed"),
        ({"type": "reasoning"}, "model"),
        ({"type": "function_call"}, "model"),
        ({"type": "function_call_output"}, "tool"),
        ({"type": "tool_search_output"}, "tool"),
    ],
)
def test_type_and_role_tell_the_rest(item: dict[str, Any], origin: str) -> None:
    assert origin_of(item) == origin


def test_developer_context_is_told_by_its_tags() -> None:
    assert looks_like_developer_context("\n<permissions instructions>x</permissions instructions>")
    assert looks_like_developer_context("Approved command prefix saved:\n- git")
    assert not looks_like_developer_context("Be terse.")
