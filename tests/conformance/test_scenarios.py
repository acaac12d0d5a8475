"""Recorded scenarios of the real program, played through real sessions: the requests are the same, item by item."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from replay import load, played, recorded

SCENARIOS = [
    "a_one_turn",
    "d_estimate_total",
    "d_limit_above_window",
    "d_preturn",
    "d_reasoning",
    "e_midturn",
    "e_midturn_end",
    "f_429",
    "f_ctx_exceeded",
    "f_ctx_exceeded_400",
    "f_ctx_exceeded_all",
    "f_drop",
    "f_failed_ratelimit",
    "f_incomplete",
    "f_mid_fail",
    "f_two_messages",
    "h_compact_prompt",
    "l_long_user_cjk",
    "l_long_user_exact_then_small",
    "l_long_user_mid",
    "l_long_user_one_100k",
    "l_long_user_one_79999",
    "l_long_user_one_80000",
    "l_long_user_one_80001",
    "l_long_user_small_big_small",
    "l_long_user_three_30k",
    "l_long_user_two_40k",
    "l_long_user_two_50k",
    "l_long_user_x_81k_y_79996",
    "m_multi_compact",
    "m_still_over",
]


@pytest.mark.parametrize("name", SCENARIOS)
def test_requests_are_those_of_the_real_program(name: str, tmp_path: Path) -> None:
    scenario = load(name)
    ours, theirs = played(scenario, tmp_path), recorded(scenario)
    for number, (mine, real) in enumerate(zip(ours, theirs, strict=True)):
        assert mine == real, f"request {number} of {name}"
