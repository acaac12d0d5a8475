"""A sample of the soak that is the same every time; `make soak` plays new sessions for ten minutes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "soak"))
from damage import OURS, Step, damage_of, damaged, seeds
from legal import faults
from odd_items import Draw, real_items
from reading import Reading

from refold.core.items import HISTORY_TYPES
from refold.core.jsonio import load
from refold.core.profile import Provider
from soak import GAMES, ROLLOUTS, Game, main, soak

SESSIONS = 100  # of each seed, about four seconds
FILES = 120  # the same


@pytest.mark.parametrize("seed", range(3))
def test_odd_items_are_recorded_sent_and_resumed_without_an_exception_or_an_illegal_request(seed: int) -> None:
    tally = soak(seed, range(SESSIONS))
    assert tally.sessions == SESSIONS
    assert tally.requests > 2_000, "every step asks each provider"
    assert not tally.failures, "\n" + "\n\n".join(map(str, tally.failures.values()))


@pytest.mark.parametrize("seed", range(2))
def test_damaged_rollouts_are_resumed_shown_and_examined_or_refused_in_one_line(seed: int) -> None:
    tally = soak(seed, range(FILES), game=ROLLOUTS)
    assert tally.sessions == FILES
    assert tally.requests > FILES / 2, "most of them can be resumed all the same"
    assert not tally.failures, "\n" + "\n\n".join(map(str, tally.failures.values()))


@pytest.mark.parametrize("game", GAMES.values(), ids=GAMES)
def test_a_session_is_made_from_its_seed_and_number_alone(game: Game) -> None:
    assert game.steps(Draw("7:3")) == game.steps(Draw("7:3"))
    assert game.steps(Draw("7:3")) != game.steps(Draw("7:4"))


def test_the_same_damage_leaves_the_same_file() -> None:
    steps = damage_of(Draw("7:3"))
    assert damaged(steps) == damaged(steps) != damaged(steps[:1])
    seeds.cache_clear()
    assert damaged(steps) == damaged(steps), "our own files are made the same again"


def test_damage_of_every_kind_is_drawn_and_done() -> None:
    draw = Draw("kinds")
    steps = [step for _ in range(1_000) for step in damage_of(draw)]
    kinds = {what for what, _ in steps}
    assert len(kinds) == 19
    for kind in kinds - {"begin with"}:
        tried = [step for step in steps if step[0] == kind]
        begun: Step = ("begin with", "ours, compacted")
        changed = sum(damaged([begun, step]) != damaged([begun]) for step in tried)
        assert changed > len(tried) / 3, kind


def test_files_to_begin_with_are_of_every_generation_and_of_our_own() -> None:
    files = seeds()
    assert len(files) > 30
    ours = b"".join(files[name] for name in OURS)
    for mark in (b"request_sent", b"steer_queued", b"pinned", b"compacted", b"world_state", b"turn_context", b"known"):
        assert mark in ours
    assert any(not data.startswith(b'{"timestamp"') for data in files.values()), "files without envelopes"


class Broken(Reading):
    """A reader that cannot read one kind of file."""

    def play(self, steps: list[Step]) -> None:
        if b"\xff" in damaged(steps):
            raise KeyError("x")


def test_what_goes_wrong_is_told_with_the_fewest_steps_that_are_enough() -> None:
    game = Game("rollouts", lambda _: [("begin with", "ours"), ("cut", 0.5), ("put bytes", [0.1, "\xff"])], Broken)
    (failure,) = soak(5, range(3), game=game).failures.values()
    assert failure.what.startswith("KeyError in")
    assert [what for what, _ in failure.steps][-1] == "put bytes"
    assert len(failure.steps) < 3
    assert "soak.py rollouts --seed 5 --session 0" in str(failure)


def test_items_of_every_kind_are_drawn_and_many_recorded_ones_are_there_to_be_mutated() -> None:
    draw = Draw("kinds")
    drawn = {item.get("type") for item in (draw.item() for _ in range(3_000)) if isinstance(item.get("type"), str)}
    assert drawn > HISTORY_TYPES
    assert "compaction_trigger" in drawn
    assert len(real_items()) > 500
    assert len({load(raw)[0]["type"] for raw in real_items()}) > 8


CALL = b'{"type":"function_call","name":"f","arguments":"{}","call_id":"c"}'
OUTPUT = b'{"type":"function_call_output","call_id":"c","output":"x"}'
EDITED = b'{"type":"custom_tool_call_output","call_id":"c","output":"x"}'
ORPHAN, UNANSWERED = "an output without a call of its kind before it", "a call without an output"
SERVER = b'{"type":"tool_search_output","execution":"server","call_id":"s","tools":[]}'


@pytest.mark.parametrize(
    ("items", "found"),
    [
        ([CALL, OUTPUT], []),
        ([SERVER], []),
        ([b'{"type":"tool_search_call","call_id":"s"}', SERVER], []),
        ([CALL], [UNANSWERED]),
        ([OUTPUT], [ORPHAN]),
        ([OUTPUT, CALL], [ORPHAN, UNANSWERED]),
        ([CALL, EDITED], [ORPHAN, UNANSWERED]),
        ([CALL, OUTPUT, OUTPUT], ["a call with more than one output"]),
        ([CALL, CALL, OUTPUT], ["two calls with one call id"]),
        ([CALL.replace(b'"{}"', b"{}"), OUTPUT], ["a function_call whose arguments are no text"]),
        ([CALL, OUTPUT.replace(b'"x"', b"5")], ["an output that is neither text nor parts"]),
        ([b'{"type":"custom_tool_call","input":null}'], ["a custom_tool_call whose input is no text"]),
        ([b'{"type":"message","role":"user","content":[5]}'], ["a message that is neither text nor parts"]),
        ([b'{"type":"message","role":"system","content":""}'], ["a system message"]),
        ([b'{"type":"compaction_trigger"}'], ["an item of a type that no provider knows"]),
        ([b'{"type":["message"]}'], ["an item of a type that no provider knows"]),
        ([b'{"type":"reasoning","id":"x_"}'], ["an id that is not of the form x_y"]),
        ([b'{"type":"reasoning","id":null}'], ["an id that is not of the form x_y"]),
        ([b'{"type":"reasoning","encrypted_function_args":1}'], ["a key that only OpenAI takes"]),
    ],
)
def test_the_check_of_a_request_finds_what_is_illegal(items: list[bytes], found: list[str]) -> None:
    assert faults(b'{"input":[%b]}' % b",".join(items), Provider(name="other")) == found


def test_the_check_of_a_request_knows_what_a_provider_asks_for() -> None:
    asks = Provider(name="local", developer_role="user", send_item_ids=False, repair_call_arguments=True)
    items = [b'{"type":"message","id":"msg_1","role":"developer","content":""}', CALL.replace(b"{}", b"[]"), OUTPUT]
    assert faults(b'{"input":[%b]}' % b",".join(items), Provider(name="other")) == []
    assert faults(b'{"input":[%b]}' % b",".join(items), asks) == [
        "a role that this provider does not know",
        "an id for a provider that takes none",
        "arguments that are no object, for a provider that reads them",
    ]


@pytest.mark.parametrize("value", [rb'"\ud83d"', b'"\xff"', b"NaN", b"1,"])
def test_the_check_of_a_request_wants_strict_json(value: bytes) -> None:
    (fault,) = faults(b'{"input":[{"type":"reasoning","x":%b}]}' % value, Provider())
    assert fault.startswith("the body is not strict JSON")


@pytest.mark.parametrize("words", [[], ["rollouts"]])
def test_the_soak_runs_from_a_shell_and_tells_its_seed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--seed", "5", "--session", "2"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "seed 5"
    assert " s: 1 sessions, " in told[-1]
