"""When compaction is due: the real program's recorded decisions, and what the context holds now."""

from __future__ import annotations

import asyncio
import base64
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from refold.core.compaction.due import Due, context_tokens, due, due_for_switch, size_of
from refold.core.guess import guess_item, guess_items, guess_text
from refold.core.history import entry
from refold.core.items import Item, message
from refold.core.profile import Profile, Provider
from refold.core.records import (
    Compacted,
    CompactionAttempted,
    ItemRecorded,
    Record,
    Scope,
    SessionStarted,
    UsageCounted,
)
from refold.core.thread import Thread
from refold.core.truncate import tokens_for
from refold.core.usage import Usage
from refold.model.scripted import ScriptedModel
from refold.session import Session
from refold.testing import text_reply

DATA = Path(__file__).parents[2] / "data" / "oracle" / "compaction_decisions.json"
DECISIONS: list[dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))
COMP_HASH = "comp_hash differs between the models (far under every limit)"
POST_TURN = "model_post_turn_compact_threshold_percent = 10, window 272000"
LAST_ANSWER = "limit passed by the last answer of a turn: no compaction in that turn"
# A process that resumes measures its own prefix; refold's is in the log, so that live == resumed (docs/deviations.md).
ON_PURPOSE = "scope body_after_prefix, third turn (last total 2510 in a resumed process)"
ROWS = {row["what"]: row for row in DECISIONS}
DECIDED = [row for row in DECISIONS if row["what"] not in (COMP_HASH, POST_TURN, LAST_ANSWER, ON_PURPOSE)]

USER, ANSWER = message("user", ["user message"]), message("assistant", ["answer"])


def thread_of(*records: Record | Item) -> Thread:
    thread = Thread()
    thread.apply(SessionStarted(thread_id="T", timestamp="", cwd="", base_instructions="x" * 30), 0)
    for ordinal, record in enumerate(records, 1):
        thread.apply(ItemRecorded(record) if isinstance(record, dict) else record, ordinal)
    return thread


def counted(total: int, *, input_tokens: int | None = None, output_tokens: int = 10) -> UsageCounted:
    last = Usage(
        input_tokens=total - output_tokens if input_tokens is None else input_tokens,
        output_tokens=output_tokens,
        total_tokens=total,
    )
    return UsageCounted(last, last)


def called(call_id: str, text: str) -> list[Item]:
    call = {"type": "function_call", "name": "exec_command", "arguments": "{}", "call_id": call_id}
    return [call, {"type": "function_call_output", "call_id": call_id, "output": text}]


# --- recorded -----------------------------------------------------------------------------------------------


def thread_before(row: dict[str, Any]) -> Thread:
    """The thread at the moment of a recorded decision."""
    match row:
        case {"totals": totals}:
            return thread_of(*(record for total in totals for record in (USER, ANSWER, counted(total))))
        case {"output_bytes": size, "call_id_bytes": id_size}:
            call, output = called("c" * id_size, "x" * size)
            return thread_of(USER, call, counted(500), output)
        case {"what": what, "last_total_tokens": total} if what.startswith("mid-turn"):
            call, output = called("call_1", "x" * (40_000 if "tool_output_bytes" in row else 200))
            return thread_of(USER, call, counted(total), output)
        case {"last_total_tokens": None, "what": "no check before the first request of a session"}:
            return thread_of()
        case {"last_total_tokens": None}:
            return thread_of(USER, ANSWER)
        case _:
            size = {"input_tokens": row.get("input_tokens"), "output_tokens": row.get("output_tokens", 10)}
            return thread_of(USER, ANSWER, counted(row["last_total_tokens"], **size))


@pytest.mark.parametrize("row", DECIDED, ids=lambda row: row.get("scenario") or row["what"][:30])
def test_compaction_is_due_where_the_real_program_compacted(row: dict[str, Any]) -> None:
    profile = Profile(
        slug="m",
        context_window=row.get("window_to") or row.get("window", 272_000),
        auto_compact_token_limit=row.get("limit", 5_000 if "output_bytes" in row else None),
    )
    scope: Scope = row.get("scope", "total")
    assert (due(thread_before(row), profile, "pre_turn", scope) is not None) is row["compacted"]


def test_all_recorded_decisions_are_decided_but_the_one_that_differs_on_purpose() -> None:
    assert (len(DECISIONS), len(DECIDED)) == (32, 28)
    row = ROWS[ON_PURPOSE]
    profile = Profile(slug="m", auto_compact_token_limit=row["limit"])
    assert row["compacted"] is False and due(thread_before(row), profile, "pre_turn", row["scope"]) is not None


def test_models_whose_comp_hash_differs_compact_at_any_size() -> None:
    row = ROWS[COMP_HASH]
    before, now = (Profile(slug=slug, context_window=row["window_to"], comp_hash=slug) for slug in "ab")
    thread = thread_of(USER, ANSWER, counted(row["last_total_tokens"]))
    found = due_for_switch(thread, before, now)
    assert (found is not None and found.reason == "comp_hash_changed") is row["compacted"]
    assert due_for_switch(thread, before, before) is None


def test_after_an_answer_it_is_due_from_the_share_that_is_set() -> None:
    row = ROWS[POST_TURN]
    thread, profile = thread_of(USER, ANSWER, counted(row["last_total_tokens"])), Profile(slug="m")
    assert (due(thread, profile, "post_turn", percent=10) is not None) is row["compacted"]
    assert due(thread, profile, "post_turn", percent=16) is None  # 40,010 of 258,400 usable
    assert due(thread, profile, "pre_turn", percent=10) is None


def test_last_answer_of_a_turn_never_compacts_in_that_turn(tmp_path: Path) -> None:
    row = ROWS[LAST_ANSWER]
    profile = Profile(slug="m", auto_compact_token_limit=row["limit"], known=True)
    reply = text_reply("done", usage=Usage(input_tokens=5_000, output_tokens=10, total_tokens=row["last_total_tokens"]))
    model = ScriptedModel([reply], profile=profile, provider=Provider(name="p", env_key=None))

    async def go() -> Thread:
        async with Session.start(model=model, cwd=tmp_path, home=tmp_path / "home") as session:
            await session.send("hi")
            return session.memory.thread

    thread = asyncio.run(go())
    assert (len(model.requests), thread.compactions) == (1, 0)
    assert due(thread, profile, "pre_turn") is not None  # the next turn begins with it


@pytest.mark.parametrize(("size", "id_size"), [(17_990, 6), (17_891, 105)])
def test_one_byte_less_than_the_recorded_smallest_output_is_not_due(size: int, id_size: int) -> None:
    thread = thread_before({"output_bytes": size, "call_id_bytes": id_size})
    assert due(thread, Profile(slug="m", auto_compact_token_limit=5_000), "mid_turn") is None


def test_bytes_count_not_characters() -> None:
    call, output = called("call_1", "é" * 8_995 + "x")  # 17,991 bytes
    thread = thread_of(USER, call, counted(500), output)
    assert due(thread, Profile(slug="m", auto_compact_token_limit=5_000), "mid_turn")


# --- what the context holds ---------------------------------------------------------------------------------


def test_what_came_after_the_models_last_item_is_added_to_what_the_provider_counted() -> None:
    call, output = called("call_1", "x" * 34)  # 40 bytes with its call id
    assert context_tokens(thread_of(USER, call, counted(500), output)) == 510
    assert context_tokens(thread_of(USER, call, counted(500), output, ANSWER)) == 500


def test_after_a_compaction_what_came_since_is_added_to_the_estimate() -> None:
    checkpoint = Compacted(message="", history=(message("user", ["x" * 400]),))
    thread = thread_of(USER, ANSWER, counted(5_000), checkpoint)
    assert context_tokens(thread) == 8 + 100
    later = thread_of(USER, ANSWER, counted(5_000), checkpoint, message("user", ["x" * 400]))
    assert context_tokens(later) == 8 + 100 + 100


def test_without_any_usage_the_context_is_guessed() -> None:
    thread = thread_of(message("user", ["so many words " * 100]), ANSWER)
    guessed = guess_text(thread.base_instructions or "") + guess_items(e.item for e in thread.history).tokens
    assert context_tokens(thread) == guessed == thread.guessed_tokens()
    assert due(thread, Profile(slug="m", auto_compact_token_limit=guessed), "pre_turn")
    assert not due(thread, Profile(slug="m", auto_compact_token_limit=guessed + 1), "pre_turn")


def test_what_is_guessed_grows_with_the_history_and_is_right_after_a_compaction() -> None:
    thread = thread_of(message("user", ["so many words " * 100]))
    assert thread.guessed_tokens() > 200
    thread.apply(ItemRecorded(message("assistant", ["and as many words " * 50])), 50)
    all_of_it = guess_items(e.item for e in thread.history).tokens
    assert thread.guessed_tokens() == guess_text(thread.base_instructions or "") + all_of_it > 350
    thread.apply(Compacted(message="s", history=(ANSWER,)), 51)
    assert thread.guessed_tokens() == guess_text(thread.base_instructions or "") + guess_item(ANSWER)


def test_a_summary_that_told_its_usage_does_not_make_the_rule_right_for_a_host_that_tells_none() -> None:
    attempted = CompactionAttempted(
        method="local", outcome="completed", usage=Usage(input_tokens=900, output_tokens=100, total_tokens=1_000)
    )
    thread = thread_of(message("user", ["so many words " * 100]), attempted)
    assert thread.total_usage.total_tokens == 1_000
    assert context_tokens(thread) == thread.guessed_tokens()
    assert size_of(thread, [entry(ANSWER, "")]) == guess_text(thread.base_instructions or "") + guess_item(ANSWER)


def test_what_is_counted_by_the_rule_may_hold_half_a_surrogate_pair() -> None:
    """A folder's name need not be UTF-8, and the environment names the folder."""
    thread = thread_of(USER, ANSWER, counted(100))
    assert size_of(thread, [entry(message("user", ["\udcff" + "x" * 9]), "")]) == 8 + 3


def test_base64_is_not_counted_at_a_third() -> None:
    """The rule alone would let a context of base64 overflow before compaction is due."""
    noise = base64.b64encode(b"".join(sha256(bytes([number])).digest() for number in range(200))).decode()
    assert context_tokens(thread_of(message("user", [noise]))) > 2 * tokens_for(len(noise))


def test_the_decision_tells_its_numbers() -> None:
    profile = Profile(slug="m", context_window=2_000)
    assert due(thread_of(USER, ANSWER, counted(1_800)), profile, "mid_turn") == Due(
        "context_limit", "mid_turn", 1_800, 1_800
    )


def test_without_a_limit_or_a_history_nothing_is_due() -> None:
    assert due(thread_of(USER, ANSWER, counted(10**9)), Profile(slug="m", context_window=None), "pre_turn") is None
    assert due(thread_of(counted(10**9)), Profile(slug="m"), "pre_turn") is None


def test_the_body_is_counted_from_the_first_response_of_each_window() -> None:
    profile = Profile(slug="m", auto_compact_token_limit=1_000)

    def body_is_due(*records: Record | Item) -> bool:
        return due(thread_of(*records), profile, "pre_turn", "body_after_prefix") is not None

    assert not body_is_due(USER, ANSWER), "no response has told the prefix yet"
    grown: list[Record | Item] = [USER, ANSWER, counted(2_000), USER, ANSWER, counted(3_000)]
    assert body_is_due(*grown)
    checkpoint = Compacted(message="", history=(USER,))
    assert not body_is_due(*grown, checkpoint)
    assert not body_is_due(*grown, checkpoint, ANSWER, counted(2_500))
    assert body_is_due(*grown, checkpoint, ANSWER, counted(2_500), ANSWER, counted(3_500))
