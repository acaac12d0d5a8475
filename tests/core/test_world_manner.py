"""Mode, personality, apps: told when they change, over when they are over, in the shapes that were recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from refold.core.fragments import looks_like_developer_context, origin_of
from refold.core.items import message_texts
from refold.core.modes import Manner, Mode, manner_of, mode_names, modes_fault
from refold.core.records import SettingsApplied, WorldObserved
from refold.core.world import World, messages, render, value_of
from refold.core.world.apps import ID as APPS
from refold.core.world.apps import with_apps
from refold.core.world.mode import ID, THEIRS, in_manner
from refold.core.world.personality import with_personality
from refold.rollout import read_lines

RECORDED = Path(__file__).parent.parent / "data" / "oracle" / "rollouts" / "a_one_turn.jsonl"
NONE: dict[str, Any] = {}
REVIEW = {"review": Mode(instructions="Only review.")}


def manner(mode: str | None = None, modes: dict[str, Mode] | None = None, last: Any = None, **more: Any) -> Manner:
    return manner_of(mode, modes or {}, more.pop("personality", None), last, **more)


def world(of: Manner, told: Any = None) -> World:
    return with_personality(in_manner(World({}), of, "m", told), of.spec)


def texts(now: World, before: Any) -> list[str]:
    return [text for fragment in render(now, before) for _, text in fragment.parts]


def recorded(kind: type[Any]) -> Any:
    return next(line.record for line in read_lines(RECORDED) if isinstance(line.record, kind))


# --- the mode ------------------------------------------------------------------------------------------------------


def test_without_a_mode_nothing_is_told_and_nothing_stands_in_the_snapshot() -> None:
    assert world(manner()).state == {}
    assert world(manner("default")).state == {}


def test_a_mode_is_told_in_its_element_and_the_snapshot_has_the_recorded_shape() -> None:
    now = world(manner("plan"))
    [text] = texts(now, None)
    assert text.startswith("<collaboration_mode># Mode: plan\n") and text.endswith("\n</collaboration_mode>")
    theirs = recorded(WorldObserved).state[THEIRS]
    assert now.state[THEIRS].keys() == theirs.keys()
    assert (now.state[THEIRS]["mode"], now.state[THEIRS]["model"]) == ("plan", "m")


def test_default_has_the_recorded_hash_when_another_mode_is_over() -> None:
    plan = world(manner("plan"))
    over = world(manner("default"), plan.state)
    [text] = texts(over, plan.state)
    assert text.startswith("<collaboration_mode># Mode: default\nNo other mode holds any more.")
    assert over.state[THEIRS]["instructions"] == recorded(WorldObserved).state[THEIRS]["instructions"]
    assert texts(world(manner("default"), over.state), over.state) == []


def test_a_mode_of_ones_own_is_the_real_programs_default_with_another_text() -> None:
    now = world(manner("review", REVIEW))
    assert now.state[THEIRS]["mode"] == "default" and value_of(now.state, ID)["name"] == "review"
    assert "\nOnly review.\n" in texts(now, None)[0]
    assert manner("review", REVIEW).settings("m", None)["collaboration_mode"]["mode"] == "default"
    assert manner("review", REVIEW).own_settings == {"collaboration_mode": "review"}


def test_what_the_real_program_told_of_the_same_mode_holds_and_of_another_does_not() -> None:
    told = {THEIRS: {"mode": "plan", "model": "m", "instructions": "another hash"}}
    assert world(manner("plan"), told).state == {}
    assert len(texts(world(manner("default"), told), told)) == 1
    mine = {"plan": Mode(instructions="My plan.")}
    assert "My plan." in texts(world(manner("plan", mine), told), told)[0]
    older = {THEIRS: "default"}
    assert world(manner(), older).state == {}
    assert len(texts(world(manner("plan"), older), older)) == 1


def test_what_the_real_program_told_after_us_is_not_taken_for_ours() -> None:
    plan = world(manner("plan")).state
    later = {**plan, THEIRS: {"mode": "default", "model": "m", "instructions": "theirs"}}
    assert len(texts(world(manner("plan"), later), later)) == 1
    assert texts(world(manner("default"), later), later) == [], "it said itself that the plan mode is over"


def test_another_model_alone_tells_no_mode_anew() -> None:
    before = world(manner("plan")).state
    now = in_manner(World({}), manner("plan"), "other", before)
    assert now.state[THEIRS]["model"] == "other"
    assert render(now, before) == []


def test_a_mode_goes_on_from_the_last_turns_settings_until_another_is_set() -> None:
    plan = manner("plan").settings("m", "high")
    assert plan["collaboration_mode"].keys() == recorded(SettingsApplied).settings["collaboration_mode"].keys()
    assert (
        plan["collaboration_mode"]["settings"].keys()
        == recorded(SettingsApplied).settings["collaboration_mode"]["settings"].keys()
    )
    assert manner(last=plan).mode == "plan"
    assert manner("default", last=plan).mode == "default"
    own = {**manner("review", REVIEW).settings("m", None), "refold": manner("review", REVIEW).own_settings}
    assert manner(modes=REVIEW, last=own).mode == "review"
    gone = manner(last=own)
    assert (gone.mode, gone.unknown) == ("default", "review")


@pytest.mark.parametrize("odd", [{"collaboration_mode": 5}, {"collaboration_mode": {"mode": []}}, {"refold": [1]}])
def test_an_odd_turn_context_says_no_mode(odd: Any) -> None:
    assert manner(last=odd).mode == "default"


def test_a_mode_that_is_not_to_be_told_is_not() -> None:
    told = {THEIRS: {"mode": "plan", "model": "m", "instructions": "x"}}
    assert texts(world(manner("plan", tell=False)), None) == []
    assert texts(world(manner("default", tell=False), told), told) == []
    assert manner("plan", tell=False).settings("m", None)["collaboration_mode"]["mode"] == "plan"


def test_modes_are_named_and_have_a_text() -> None:
    assert mode_names(["review", "plan"]) == ["default", "plan", "review"]
    assert modes_fault({"plan": Mode()}) is None
    assert modes_fault({"a b": Mode(instructions="x")}) and modes_fault({"review": Mode(instructions=" ")})


# --- the personality -----------------------------------------------------------------------------------------------


def test_a_personality_is_one_part_in_a_message_of_its_own() -> None:
    now = world(manner("plan", personality="Speak like a pirate."))
    first, alone = messages(render(now, None), ["msg_1", "msg_2"], "t")
    assert message_texts(first)[0].startswith("<collaboration_mode>")
    [text] = message_texts(alone)
    assert alone["role"] == "developer"
    assert text.startswith("<personality_spec> ") and text.endswith("\nSpeak like a pirate. </personality_spec>")


def test_a_change_of_personality_tells_that_alone_and_none_says_that_it_is_over() -> None:
    friendly, plain = world(manner(personality="friendly")), world(manner(personality="none"))
    pragmatic = world(manner(personality="pragmatic"), friendly.state)
    [text] = texts(pragmatic, friendly.state)
    assert "engineer" in text
    [over] = texts(plain, friendly.state)
    assert "no longer" in over and texts(plain, None) == []


def test_the_log_says_a_personality_in_the_real_programs_words_where_it_has_one() -> None:
    assert manner(personality="friendly").settings("m", None) == {"personality": "friendly"}
    free = manner(personality="Be brief.")
    assert free.settings("m", None) == {} and free.own_settings == {"personality": "Be brief."}
    assert manner(last={"refold": free.own_settings}).spec == "Be brief."
    assert manner(last={"personality": "friendly"}).spec == "", "its own models have it in their instructions"


# --- apps ----------------------------------------------------------------------------------------------------------


def test_apps_are_listed_and_no_text_leaves_its_line() -> None:
    now = with_apps(World({}), {"mail": "Sends\nmail.", "odd": "</apps_instructions>"})
    [text] = texts(now, None)
    assert "\n- mail: Sends mail.\n- odd: &lt;/apps_instructions&gt;\n</apps_instructions>" in text
    assert now.state["apps_instructions"] is True
    gone = with_apps(World({}), {}, now.state)
    assert gone.state == {"apps_instructions": False} and "no longer" in texts(gone, now.state)[0]
    assert with_apps(World({}), {}, gone.state).state == {} and value_of(gone.state, APPS) is None


def test_everything_here_is_known_for_context_again() -> None:
    now = with_apps(world(manner("plan", personality="friendly")), {"mail": ""})
    for item in messages(render(now, None), ["a", "b"], None):
        bare = {key: item[key] for key in ("type", "role", "content")}
        assert origin_of(bare) == "injected"
        assert all(map(looks_like_developer_context, message_texts(item)))
