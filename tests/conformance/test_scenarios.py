"""Recorded scenarios of the real program, played through real sessions: the requests are the same, item by item.

Context items are compared by role, kinds and position, everything else exactly.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from replay import DATA, load, played, recorded

SAME = """
a_one_turn d_estimate_total d_limit_above_window d_preturn d_reasoning e_midturn e_midturn_end f_429 f_500 f_500_all
f_ctx_exceeded f_ctx_exceeded_400 f_ctx_exceeded_all f_drop f_failed_ratelimit f_incomplete f_kill_mid_compaction
f_mid_fail f_two_messages g_azure g_openai_named g_remote_500 g_remote_budget_exact_256000 g_remote_budget_one_300k
g_remote_budget_over_256001 g_remote_budget_three_120k g_remote_ctx_exceeded g_remote_drop g_remote_mid
g_remote_multi_users g_remote_no_item g_remote_rewrite g_remote_two_items h_compact_prompt h_compact_prompt_file
i_resume_fork j_downshift j_downshift_comphash j_downshift_notneeded j_downshift_override k_world_state
k_world_state_compact l_long_user_cjk l_long_user_exact_then_small l_long_user_mid
l_long_user_one_100k l_long_user_one_79999 l_long_user_one_80000
l_long_user_one_80001 l_long_user_small_big_small l_long_user_three_30k l_long_user_two_40k l_long_user_two_50k
l_long_user_x_81k_y_79996 m_multi_compact m_still_over n_kill_mid_stream n_kill_mid_tool n_sigint_mid_tool p_post_turn
t_interrupt t_manual_compact t_manual_compact_remote t_revert t_steer v_default_retries_500 v_default_retries_drop
v_default_retries_turn_drop w_tool_output_kinds
""".split()  # noqa: SIM905 (a list of fifty would be a page)

# Where refold differs on purpose; docs/deviations.md says why, and which test holds it.
ON_PURPOSE = [
    "b_tool_loop",
    "f_empty_summary",
    "f_no_message",
    "f_sampling_ctx_exceeded",
    "f_tool_call_reply",
    "r_images",
    "s_orphans_and_compact",
    "x_filtered_users",
]

# What is still to be built: the scenario, or the beginning of its name, and what it needs.
NOT_YET: dict[str, str] = {}


@pytest.mark.parametrize("name", SAME)
def test_requests_are_those_of_the_real_program(name: str, tmp_path: Path) -> None:
    scenario = load(name)
    ours, theirs = played(scenario, tmp_path), recorded(scenario)
    for number, (mine, real) in enumerate(zip(ours, theirs, strict=True)):
        assert mine == real, f"request {number} of {name}"


def test_an_image_is_sent_as_the_real_program_does_until_a_compaction_leaves_a_word_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = load("r_images")
    ours, theirs = played(scenario, tmp_path), recorded(scenario)
    word = {"type": "input_text", "text": "[image left out]"}
    assert len(ours) == len(theirs)
    differ = [number for number, (mine, real) in enumerate(zip(ours, theirs, strict=True)) if mine != real]
    for number in differ:
        for item in ours[number]:
            if isinstance(item.get("content"), list):
                item["content"] = [part for part in item["content"] if part != word]
        assert ours[number] == theirs[number]
    assert differ == [2]


def test_the_tool_loop_is_the_same_but_for_our_words_for_bad_arguments(tmp_path: Path) -> None:
    scenario = load("b_tool_loop")
    ours, theirs = played(scenario, tmp_path), recorded(scenario)
    assert len(ours) == len(theirs)
    differ = [
        (one, other)
        for mine, real in zip(ours, theirs, strict=True)
        for one, other in zip(mine, real, strict=True)
        if one != other
    ]
    assert {one["call_id"] for one, _ in differ} == {"call_5"}
    bad = "failed to parse function arguments: missing field `cmd`"
    assert all(one["output"].startswith(bad) and other["output"].startswith(bad) for one, other in differ)


def test_every_recorded_scenario_is_accounted_for() -> None:
    def is_later(name: str) -> bool:
        return any(name == one or (one.endswith("_") and name.startswith(one)) for one in NOT_YET)

    recordings = {path.stem for path in DATA.glob("*.json")}
    later = {name for name in recordings if is_later(name)}
    assert recordings == {*SAME, *ON_PURPOSE, *later}
    assert len(recordings) == len(SAME) + len(ON_PURPOSE) + len(later)


def test_every_deviation_is_written_down() -> None:
    page = (Path(__file__).parents[2] / "docs" / "deviations.md").read_text(encoding="utf-8")
    for name in ON_PURPOSE:
        assert f"`{name}`" in page, name
