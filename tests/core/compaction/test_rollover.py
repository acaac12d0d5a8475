"""Rollover: its settings, when a window is over, what is left of it, and what the next one begins with."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.compaction.due import due
from refold.core.compaction.rollover import (
    GRANTED,
    TOO_SOON,
    has_news,
    is_asked_for,
    is_measured,
    settle,
    tokens_left,
    was_told,
    without_window_calls,
)
from refold.core.config import Config, parse_config, with_override
from refold.core.fragments import (
    KIND_BUDGET_FALLBACK,
    KIND_BUDGET_REMINDER,
    KIND_SUMMARY,
    KIND_TYPED,
    SUMMARY_MARK,
    origin_of,
    stored_message,
)
from refold.core.history import Entry, entry
from refold.core.items import Item, message, message_text
from refold.core.limits import TokenBudget
from refold.core.profile import Profile
from refold.core.records import ItemRecorded, Record, SessionStarted, UsageCounted, Window
from refold.core.thread import Thread
from refold.core.usage import Usage
from refold.core.world import in_window, make_world, messages, render, window_told
from refold.errors import ConfigError

PROFILE = Profile(slug="m", context_window=100_000, auto_compact_token_limit=1_000)
USER, ANSWER = message("user", ["find the leak"]), message("assistant", ["an answer"])
SUMMARY = stored_message("user", [(KIND_SUMMARY, SUMMARY_MARK + "before")], id="msg_s", turn_id=None)


def call(call_id: str, name: str = "new_context", arguments: str = "{}") -> Item:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str, text: str = GRANTED) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def entries(*items: Item) -> list[Entry]:
    return [entry(item, f"T:{number}") for number, item in enumerate(items)]


def told(total: int, input_tokens: int = 1) -> UsageCounted:
    last = Usage(input_tokens=input_tokens, output_tokens=total - input_tokens, total_tokens=total)
    return UsageCounted(last, last)


def thread_of(*records: Record | Item) -> Thread:
    thread = Thread()
    thread.apply(SessionStarted(thread_id="T", timestamp="", cwd=""), 0)
    for ordinal, record in enumerate(records, 1):
        thread.apply(ItemRecorded(record) if isinstance(record, dict) else record, ordinal)
    return thread


# --- settings ----------------------------------------------------------------------------------------------------


def budget(**table: Any) -> TokenBudget:
    return parse_config({"features": {"token_budget": table}}, "config.toml").features.token_budget


def refused(**table: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        budget(**table)
    return f"{caught.value.key}: {caught.value.why}"


def test_it_is_off_unless_it_is_switched_on() -> None:
    assert not Config().features.token_budget.enabled
    assert not budget(reminder_threshold_tokens=5).enabled
    assert budget(enabled=True).enabled
    assert parse_config({"features": {"token_budget": True}}, "config.toml").features.token_budget.enabled
    option = with_override({}, "features.token_budget.enabled", True)
    assert parse_config(option, "option -c").features.token_budget.enabled


def test_other_features_of_the_real_program_are_no_settings_of_ours() -> None:
    features = {"web_search_request": True, "unified_exec": {"deep": [1]}, "token_budget": {"enabled": True}}
    assert parse_config({"features": features}, "config.toml").features.token_budget.enabled


def test_a_text_has_at_most_2000_bytes() -> None:
    for key in ("reminder_message_template", "guidance_message"):
        assert getattr(budget(**{key: "é" * 1_000}), key)
        expected = f"features.token_budget.{key}: must be at most 2,000 bytes (config.toml)"
        assert refused(**{key: "é" * 1_000 + "x"}) == expected


def test_a_fallback_prompt_needs_its_buffer_and_a_buffer_without_it_is_none() -> None:
    assert refused(auto_compact_fallback_prompt="X").startswith(
        "features.token_budget.auto_compact_fallback_buffer_tokens: must be set with auto_compact_fallback_prompt"
    )
    both = budget(auto_compact_fallback_prompt="X", auto_compact_fallback_buffer_tokens=500)
    assert both.buffer == 500
    assert budget(auto_compact_fallback_buffer_tokens=500).buffer == 0


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"reminder_threshold_tokens": 0}, "reminder_threshold_tokens: must be above 0, not 0"),
        ({"auto_compact_fallback_buffer_tokens": -1}, "buffer_tokens: must be above 0, not -1"),
        ({"reminder_threshold_tokens": "many"}, "features.token_budget: expected a whole number, got a text"),
        ({"enabled": "yes"}, "features.token_budget: expected true or false"),
        ({"reminder_treshold_tokens": 5}, "did you mean reminder_threshold_tokens?"),
    ],
)
def test_a_wrong_setting_is_named(table: dict[str, Any], words: str) -> None:
    assert words in refused(**table)


def test_what_is_no_table_is_said() -> None:
    for document in ({"features": 1}, {"features": {"token_budget": 1}}):
        with pytest.raises(ConfigError, match="must be a table"):
            parse_config(document, "config.toml")


# --- when --------------------------------------------------------------------------------------------------------


def test_a_buffer_puts_the_end_off_but_never_beyond_what_the_window_can_hold() -> None:
    def is_due(total: int, buffer: int) -> bool:
        return due(thread_of(USER, ANSWER, told(total)), PROFILE, "mid_turn", buffer=buffer) is not None

    assert [is_due(total, 0) for total in (999, 1_000)] == [False, True]
    assert [is_due(total, 500) for total in (1_499, 1_500)] == [False, True]
    assert [is_due(total, 200_000) for total in (94_999, 95_000)] == [False, True]


def test_scope_body_after_prefix_still_ends_where_the_window_is_full() -> None:
    thread = thread_of(USER, ANSWER, told(94_500), ANSWER, told(95_000))
    assert due(thread, PROFILE, "mid_turn", "body_after_prefix") is not None
    thread = thread_of(USER, ANSWER, told(94_500), ANSWER, told(94_999))
    assert due(thread, PROFILE, "mid_turn", "body_after_prefix") is None


def test_a_window_is_asked_for_by_an_answered_call_since_a_person_spoke() -> None:
    asked = [USER, call("a"), output("a")]
    assert is_asked_for(entries(*asked))
    assert is_asked_for(entries(*asked, message("developer", ["a note"])))
    assert not is_asked_for(entries(*asked, USER))
    assert not is_asked_for(entries(*asked, SUMMARY))
    assert not is_asked_for(entries(USER, call("a")))
    assert not is_asked_for(entries(USER, call("a"), output("a", TOO_SOON)))
    assert not is_asked_for(entries(USER, call("a"), output("a", "Wall time: 0.1 seconds\naborted by user")))
    assert not is_asked_for(entries(USER, call("a", "exec_command"), output("a", GRANTED)))


def test_a_window_has_news_once_something_was_said_or_done_in_it() -> None:
    begun = [USER, SUMMARY]
    assert has_news(entries(USER)), "the first window began with what a person said"
    assert not has_news(entries(*begun))
    assert not has_news(entries(*begun, call("a"), call("b", "get_context_remaining"), output("b", "5 left")))
    assert not has_news(entries(*begun, ANSWER)), "the model's own words are not what it works on"
    assert has_news(entries(*begun, USER))
    assert has_news(entries(*begun, call("a", "exec_command"), output("a", "done"), call("b")))


# --- what is left ------------------------------------------------------------------------------------------------


def test_what_is_left_goes_to_the_limit_and_no_further() -> None:
    assert tokens_left(thread_of(USER, ANSWER, told(890)), PROFILE, "total") == 110
    assert tokens_left(thread_of(USER, ANSWER, told(2_000)), PROFILE, "total") == 0
    assert tokens_left(thread_of(USER), Profile(slug="m", context_window=None), "total") is None


def test_what_is_left_counts_what_the_scope_counts() -> None:
    thread = thread_of(USER, ANSWER, told(700), ANSWER, told(900))
    assert tokens_left(thread, PROFILE, "body_after_prefix") == 800


def test_while_a_response_comes_in_what_came_before_it_counts() -> None:
    result = output("a", "x" * 399)  # with its call id 400 bytes: 100 tokens
    before = (USER, call("a", "work"), told(500), result)
    assert tokens_left(thread_of(*before), PROFILE, "total") == 400
    asking = call("b", "get_context_remaining")  # 23 bytes: 6 tokens
    assert tokens_left(thread_of(*before, asking), PROFILE, "total", sampling=True) == 394
    assert tokens_left(thread_of(*before, asking, told(640)), PROFILE, "total", sampling=True) == 360
    late = (USER, call("a", "work"), result, told(500))  # the real program tells usage after the outputs
    assert tokens_left(thread_of(*late, asking), PROFILE, "total", sampling=True) == 394


def test_a_windows_use_is_known_by_its_first_response() -> None:
    assert not is_measured(thread_of(USER))
    assert is_measured(thread_of(USER, ANSWER)), "a provider that never tells usage: by guess"
    assert is_measured(thread_of(USER, ANSWER, told(5)))


def test_a_message_is_told_when_it_says_so_itself() -> None:
    reminder = stored_message("developer", [(KIND_BUDGET_REMINDER, "5 left")], id="msg_r", turn_id=None)
    typed = stored_message("user", [(KIND_TYPED, "5 left")], id="msg_u", turn_id=None)
    assert was_told(entries(reminder, USER), KIND_BUDGET_REMINDER)
    assert not was_told(entries(reminder, USER), KIND_BUDGET_FALLBACK)
    assert not was_told(entries(typed, message("developer", ["5 left"])), KIND_BUDGET_REMINDER)


# --- the next window ---------------------------------------------------------------------------------------------


def test_the_next_window_holds_what_people_said_context_and_an_outline() -> None:
    context = [message("developer", ["RULES"])]
    history = entries(USER, call("a", "exec_command", '{"cmd": "make"}'), output("a", "Process exited with code 0"))
    found = settle(history, context, limit=None, outline_tokens=2_000, summary_id="msg_1", turn_id="t")
    rules, user, closing = found.items
    assert (rules, user) == (context[0], USER)
    assert origin_of(closing) == "summary"
    assert "[T:1] make -> exit 0" in message_text(closing)
    assert found.base == tuple(history)
    assert found.addresses == ("", "T:0", "")


def test_what_people_said_leaves_room_in_a_small_window() -> None:
    long = message("user", ["y" * 40_000])
    found = settle(entries(long), [], limit=1_000, outline_tokens=8_000, summary_id="msg_1", turn_id=None)
    said, closing = found.items
    assert len(message_text(said)) < 2_100, "half of the limit"
    assert len(message_text(closing)) < 1_000 + len(SUMMARY_MARK), "a quarter of it"


def test_the_windows_own_calls_are_over_with_it() -> None:
    own = [call("a"), output("a"), call("b", "get_context_remaining"), output("b", "5 left")]
    others = [USER, call("c", "exec_command"), output("c", "done")]
    history = entries(others[0], *own, *others[1:])
    assert [e.item for e in without_window_calls(history)] == others
    failed = entries(USER, call("a"), output("a", "failed: a hook refused it"))
    closing = settle(failed, [], limit=None, outline_tokens=500, summary_id="msg_1", turn_id=None).items[-1]
    assert "new_context" not in message_text(closing)


# --- what is told of it ------------------------------------------------------------------------------------------


FIRST = Window(0, "W0", "W0")


def world(guidance: str = "", window: Window = FIRST) -> Any:
    environment = {
        "environments": {"local": {"cwd": "/w", "status": "available", "shell": "bash"}},
        "current_date": "2026-01-01",
        "timezone": "Etc/UTC",
        "filesystem": "<filesystem />",
    }
    return in_window(make_world(permissions="P", environment=environment, agents_md={}), window, guidance)


def parts_of(now: Any, before: Any = None) -> list[list[str]]:
    found = messages(render(now, before), ["a", "b", "c", "d"], None)
    return [[part["text"] for part in item["content"]] for item in found]


def test_a_window_is_told_in_a_message_of_its_own_between_rules_and_environment() -> None:
    rules, window, environment = parts_of(world("BE BRIEF"))
    assert rules[0] == "<context_window_guidance>\nBE BRIEF\n</context_window_guidance>"
    assert rules[1].startswith("<permissions")
    first = "\nAgent name: /root\nFirst context window id: W0\nCurrent context window id: W0\n"
    assert window == ["<context_window>", first, "</context_window>"]
    assert environment[0].startswith("<environment_context>")


def test_only_a_window_or_guidance_that_changed_is_told_again() -> None:
    now = world("BE BRIEF", Window(1, "W1", "W0", "W0"))
    assert parts_of(now, now.state) == []
    (alone,) = parts_of(now, world("BE BRIEF").state)
    assert alone[1].endswith("Current context window id: W1\nPrevious context window id: W0\n")
    assert parts_of(now, {**now.state, "context_window_guidance": ""}) == [[parts_of(now)[0][0]]]
    assert parts_of(world(""), world("BE BRIEF").state) == [], "nothing can be said of what is no longer wanted"


def test_the_snapshot_tells_the_window_whole() -> None:
    window = Window(3, "W3", "W0", "W2")
    assert window_told(world(window=window).state) == window
    assert window_told(world(window=Window()).state) == Window(), "an old file's window has no ids"
    assert window_told({"agents_md": {}}) is None
    assert window_told({"refold": {"window": {"number": "3"}}}) is None
    assert window_told(None) is None
