"""What a checkpoint tells the real program of messages and items, beside what that program wrote itself."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from refold.core.compaction.retained import RETAINED_MESSAGES, retained, told_by, within
from refold.core.compaction.whole import whole
from refold.core.history import is_user_turn
from refold.core.items import Item
from refold.core.lines.read import decode
from refold.core.lines.write import encode
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted, ItemRecorded, SessionStarted, TurnEnded, TurnStarted, Window
from refold.core.thread import Thread, same_state
from refold.model.scripted import Reply, ScriptedModel
from refold.session.memory import read_thread
from refold.session.session import Session
from refold.testing import text_reply, usage

DATA = Path(__file__).parents[2] / "data"
ROLLOUTS = DATA / "oracle" / "rollouts"
CONTEXT, METADATA = "retained_context", "replacement_history_metadata"


# --- recorded checkpoints ------------------------------------------------------------------------------------------


def spelled_out(text: Any) -> Any:
    """A long text that a recording only describes: numbered lines, cut to a length."""
    if not isinstance(text, dict):
        return text
    told = text["$big"]
    tag = told["head"].split()[0]
    made = "".join(f"{tag} {number:06d} the quick brown fox\n" for number in range(1, 4_000))[: told["bytes"]]
    assert hashlib.sha256(made.encode()).hexdigest() == told["sha256"]
    return made


def lines_of(path: Path) -> list[bytes]:
    found: list[bytes] = []
    for raw in path.read_bytes().splitlines():
        line = json.loads(raw)
        for item in [line["payload"], *(line["payload"].get("replacement_history") or [])]:
            for part in item.get("content") or [] if isinstance(item.get("content"), list) else []:
                part["text"] = spelled_out(part.get("text"))
        found.append(json.dumps(line).encode())
    return found


def checkpoints() -> list[tuple[str, int]]:
    """Every recorded checkpoint: a file's name and the number of its line."""
    found = [(path.stem, path.read_bytes().splitlines()) for path in sorted(ROLLOUTS.glob("*.jsonl"))]
    return [(name, place) for name, lines in found for place, line in enumerate(lines) if b'"type":"compacted"' in line]


def folded(lines: list[bytes]) -> tuple[Thread, int]:
    """The thread that the lines before a checkpoint give, and how many replies for a summary stand there as items.

    Those the real program gives a number; refold records no item for them, so they are left out.
    """
    thread, summaries = Thread(), 0
    for number, raw in enumerate(lines):
        line = decode(raw, number)
        assert line is not None
        match line.record:
            case Compacted():
                summaries = 0
            case ItemRecorded(metadata={"compaction_output": True}):
                summaries += 1
                continue
            case _:
                pass
        thread.apply(line.record, line.ordinal)
    return thread, summaries


def phase_of(lines: list[bytes], thread: Thread) -> str:
    """`pre_turn` where the turn's message stands behind the checkpoint."""
    for raw in lines:
        line = decode(raw, 0)
        if line is not None and isinstance(line.record, ItemRecorded) and is_user_turn(line.record.item):
            about = line.record.item["internal_chat_message_metadata_passthrough"]
            return "pre_turn" if about["turn_id"] == thread.open_turn else "mid_turn"
    raise AssertionError("nothing was said behind the checkpoint")


def alike(value: Any, names: dict[str, str]) -> Any:
    """With revisions named by where they appear first: each program makes its own."""
    if isinstance(value, dict):
        return {key: alike(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [alike(inner, names) for inner in value]
    return names.setdefault(value, f"revision {len(names)}") if str(value).startswith("retained_") else value


def without_number_of_summary(metadata: list[Any], items: Any, thread: Thread, summaries: int) -> list[Any]:
    known = {entry.item.get("id") for entry in thread.history}
    fresh = [item.get("id") not in known for item in items]
    return [
        {**one, "history_sequence": one["history_sequence"] - summaries} if is_fresh else one
        for one, is_fresh in zip(metadata, fresh, strict=True)
    ]


@pytest.mark.parametrize(("name", "place"), checkpoints(), ids=[f"{name}:{place}" for name, place in checkpoints()])
def test_both_keys_are_those_that_the_real_program_wrote(name: str, place: int) -> None:
    lines = lines_of(ROLLOUTS / f"{name}.jsonl")
    thread, summaries = folded(lines[:place])
    theirs = decode(lines[place], place)
    assert theirs is not None and isinstance(theirs.record, Compacted) and theirs.record.history is not None
    items, payload = theirs.record.history, theirs.record.payload
    ours = retained(thread, items, {"phase": phase_of(lines[place:], thread), "comp_hash": "0001"})
    expected = without_number_of_summary(payload[METADATA], items, thread, summaries)
    in_ours: dict[str, str] = {}
    in_theirs: dict[str, str] = {}
    assert alike(ours[CONTEXT], in_ours) == alike(payload[CONTEXT], in_theirs)
    assert alike(ours[METADATA], in_ours) == alike(expected, in_theirs)
    assert json.dumps(alike(ours, in_ours)) == json.dumps(
        {METADATA: alike(expected, in_theirs), CONTEXT: alike(payload[CONTEXT], in_theirs)}
    ), "the order of keys"


def test_every_recorded_checkpoint_was_looked_at() -> None:
    found = checkpoints()
    assert len(found) == 18 and len({name for name, _ in found}) == 12


@pytest.mark.parametrize("kept", json.loads((DATA / "retained" / "cut_texts.json").read_text(encoding="utf-8")))
def test_a_long_text_is_cut_where_the_real_program_cuts(kept: dict[str, Any]) -> None:
    made = kept["text"]
    if "numbers" in made:
        text = "".join(f"{number:05d}," for number in range(5_000))[: made["numbers"]]
    else:
        text = made["before"] + made["repeat"] * made["count"]
    assert len(text.encode()) == kept["bytes"]
    found, is_whole = within(text)
    assert is_whole == kept["complete"]
    assert hashlib.sha256(found.encode()).hexdigest() == kept["sha256"]
    if "mark" in kept:
        head, tail = found.split(kept["mark"])
        assert (len(head.encode()), len(tail.encode())) == (kept["head"], kept["tail"])


# --- threads of our own --------------------------------------------------------------------------------------------


def typed(name: str, text: str = "do it", turn: str | None = "t1", kind: str = "user.text") -> Item:
    about = {"content_item_kinds": [kind], **({} if turn is None else {"turn_id": turn})}
    content = [{"type": "input_text", "text": text}]
    said = {"type": "message", "id": name, "role": "user", "content": content}
    return {**said, "internal_chat_message_metadata_passthrough": about}


def said(name: str, *texts: str, **more: Any) -> Item:
    content = [{"type": "output_text", "text": text} for text in texts]
    return {"type": "message", "id": name, "role": "assistant", "content": content, **more}


def call(name: str, tool: str = "exec_command", **more: Any) -> Item:
    return {"type": "function_call", "id": name, "call_id": name, "name": tool, "arguments": "{}", **more}


def output(name: str) -> Item:
    return {"type": "function_call_output", "id": f"o_{name}", "call_id": name, "output": "done"}


def begun(*items: Item) -> Thread:
    thread = Thread()
    thread.apply(SessionStarted(thread_id="T", timestamp="2026-01-01T00:00:00.000Z", cwd="/w"), 0)
    thread.apply(TurnStarted("t1"), 1)
    return with_items(thread, *items)


def with_items(thread: Thread, *items: Item) -> Thread:
    for item in items:
        thread.apply(ItemRecorded(item), thread.next_ordinal)
    return thread


def compacted(thread: Thread, *items: Item, **facts: Any) -> dict[str, Any]:
    """Put a checkpoint with these items in the log; what it tells."""
    payload = retained(thread, items, facts)
    thread.apply(
        Compacted(message="", history=items, window=thread.window.next("w"), facts=facts, payload=payload),
        thread.next_ordinal,
    )
    return payload


SUMMARY = typed("s1", "what was done", None, "compaction.summary")


def names(messages: list[dict[str, Any]]) -> list[str]:
    return [one["message_id"] for one in messages]


def test_the_newest_eight_of_each_are_told_and_that_there_were_more() -> None:
    spoken = [item for n in range(12) for item in (typed(f"u{n}", f"ask {n}"), said(f"a{n}", f"say {n}"))]
    told = retained(begun(*spoken, typed("u12", "ask 12")), [SUMMARY], {})[CONTEXT]
    assert names(told["user_messages"]) == [f"u{n}" for n in range(5, 13)]
    assert names(told["assistant_messages"]) == [f"a{n}" for n in range(4, 12)]
    assert [one["order"] for one in told["user_messages"]] == list(range(10, 26, 2))
    assert told["user_messages_incomplete"] and told["assistant_messages_incomplete"] and told["next_order"] == 25
    few = retained(begun(*spoken[: 2 * RETAINED_MESSAGES]), [SUMMARY], {})[CONTEXT]
    assert not few["user_messages_incomplete"] and not few["assistant_messages_incomplete"]


def test_a_checkpoint_grows_no_more_when_more_was_said() -> None:
    long = "word " * 10_000
    spoken = [item for n in range(40) for item in (typed(f"u{n}", long), said(f"a{n}", long))]
    thread = begun(*spoken)
    first = len(json.dumps(compacted(thread, typed("u39", long), SUMMARY)))
    again = [item for n in range(40, 80) for item in (typed(f"u{n}", long), said(f"a{n}", long))]
    second = len(json.dumps(compacted(with_items(thread, *again), typed("u79", long), SUMMARY)))
    assert abs(first - second) < 100 and second < 64_000


def test_answers_without_a_text_have_an_order_only_and_a_phase_is_told() -> None:
    items = (
        typed("u"),
        said("a", "so", phase="commentary"),
        said("blank", ""),
        said("none"),
        said("b", "it", "is"),
    )
    told = retained(begun(*items), items, {"method": "undo"})
    assert [(one["text"], one.get("phase")) for one in told[CONTEXT]["assistant_messages"]] == [
        ("so", "commentary"),
        ("it\nis", None),
    ]
    assert [one["user_input_order"] for one in told[METADATA]] == [0, 1, 2, 3, 4]
    assert ["retained_source" in one for one in told[METADATA]] == [True, True, False, False, True]


def test_calls_have_an_order_and_outputs_tell_what_was_read() -> None:
    items = (typed("u"), call("c1"), call("c2"), output("c1"), output("c2"), said("a", "done"))
    told = retained(begun(*items), items, {})
    assert [one.get("user_input_order") for one in told[METADATA]] == [0, 1, 2, None, None, 3]
    assert [one["history_sequence"] for one in told[METADATA]] == [1, 2, 3, 4, 5, 6]
    assert [one["sampled_through_sequence"] for one in told[METADATA]] == [5, 1, 1, 1, 1, 5], (
        "the first says the newest"
    )


@pytest.mark.parametrize("tool", [{"tool": "mcp__docs__search"}, {"tool": "search", "namespace": "mcp__docs"}])
def test_what_may_come_from_a_server_is_not_vouched_for(tool: dict[str, str]) -> None:
    thread = begun(typed("u"), call("c", **tool), output("c"))
    for _ in range(2):  # not later either, when the call is gone
        told = compacted(thread, typed("u"), SUMMARY)
        assert not any({"mcp_attribution", "model_search_state"} & set(one) for one in told[METADATA])
    assert all("model_search_state" in one for one in retained(begun(typed("u"), call("c")), [SUMMARY], {})[METADATA])


def test_a_message_that_is_cut_in_the_checkpoint_says_so_and_its_own_text_stays() -> None:
    told = retained(begun(typed("u", "long enough")), [typed("u", "long")], {})
    assert told[METADATA][0]["retained_source"]["complete"] is False
    assert (told[CONTEXT]["user_messages"][0]["text"], told[CONTEXT]["user_messages"][0]["complete"]) == (
        "long enough",
        True,
    )


def test_numbers_and_names_go_on_behind_a_checkpoint() -> None:
    thread = begun(typed("u1"), call("c1"), output("c1"), said("a1", "one"))
    first = compacted(thread, typed("u1"), SUMMARY)
    with_items(thread, typed("u2", "next", "t2"), said("a2", "two"))
    second = compacted(thread, typed("u1"), typed("u2", "next", "t2"), {**SUMMARY, "id": "s2"})
    assert [one["history_sequence"] for one in first[METADATA]] == [1, 5]
    assert [one["history_sequence"] for one in second[METADATA]] == [1, 6, 8]
    assert second[CONTEXT]["user_messages"][0] == first[CONTEXT]["user_messages"][0]
    assert [one["order"] for one in second[CONTEXT]["user_messages"]] == [0, 3]
    assert second[CONTEXT]["next_order"] == 5


def test_a_message_that_is_still_to_come_has_its_order() -> None:
    thread = begun(typed("u1"), said("a1", "one"))
    thread.apply(TurnStarted("t2"), 9)
    payload = retained(thread, [typed("u1"), SUMMARY], {"phase": "pre_turn"})
    assert payload[CONTEXT]["next_order"] == 3
    payload = payload | {"resume_metadata": {"last_started_turn_id": "t2"}}
    thread.apply(Compacted(message="", history=(typed("u1"), SUMMARY), window=Window(), payload=payload), 10)
    with_items(thread, typed("u2", turn="t2"))
    told = retained(thread, [typed("u2", turn="t2")], {"phase": "mid_turn"})
    assert told[METADATA][0]["user_input_order"] == 2 and told[CONTEXT]["next_order"] == 3


def test_answers_to_questions_of_the_real_program_are_carried_on() -> None:
    answers = [{"turn_id": "t1", "call_id": "c", "questions": [{"question": "?", "answer": "yes"}]}]
    thread = begun(typed("u1"))
    payload = retained(thread, [typed("u1")], {})
    payload[CONTEXT] |= {"verified_answers": answers, "incomplete": True}
    thread.apply(Compacted(message="", history=(typed("u1"),), payload=payload), 5)
    told = retained(thread, [typed("u1"), SUMMARY], {})[CONTEXT]
    assert (told["verified_answers"], told["incomplete"]) == (answers, True)
    assert whole(thread).payload[CONTEXT]["verified_answers"] == answers


@pytest.mark.parametrize("payload", [{}, {CONTEXT: {"next_order": 7}, METADATA: [{}, {}]}, {CONTEXT: 3, METADATA: "x"}])
def test_after_a_checkpoint_that_does_not_tell_it_is_said_that_messages_may_lack(payload: dict[str, Any]) -> None:
    thread = begun(typed("u0"), said("a0", "zero"))
    thread.apply(Compacted(message="", history=(typed("u1"),), payload=payload), 5)
    told = retained(thread, [typed("u1"), SUMMARY], {})
    assert names(told[CONTEXT]["user_messages"]) == ["u1"]
    assert told[CONTEXT]["user_messages_incomplete"] and told[CONTEXT]["assistant_messages_incomplete"]
    assert [one["history_sequence"] for one in told[METADATA]] == [1, 2]


def test_a_message_without_an_id_or_a_turn_is_told_and_not_complete() -> None:
    nameless: Item = {"type": "message", "role": "user", "content": "from elsewhere"}
    strange = {**typed("u", turn=None), "id": ["no text"]}
    thread = begun()
    thread.apply(TurnEnded(turn_id="t1", outcome="completed"), 2)
    told = retained(with_items(thread, nameless, strange, typed("u3", turn=None)), [nameless], {})
    assert [(one["message_id"], one["turn_id"], one["complete"]) for one in told[CONTEXT]["user_messages"]] == [
        (None, "", False),
        (None, "", False),
        ("u3", "", True),
    ]
    assert "retained_source" not in told[METADATA][0]


def test_turns_that_are_taken_back_are_not_told_of() -> None:
    thread = begun(typed("u1"), said("a1", "one"), typed("u2", turn="t2"), said("a2", "two"))
    told = compacted(thread, *[e.item for e in thread.history[:2]], method="rollback")[CONTEXT]
    assert (names(told["user_messages"]), names(told["assistant_messages"])) == (["u1"], ["a1"])
    assert told["next_order"] == 4, "an order is not used twice"
    with_items(thread, typed("u3", turn="t3"))
    assert retained(thread, [SUMMARY], {})[CONTEXT]["user_messages"][-1]["order"] == 4


def test_what_an_undo_brings_back_keeps_the_names_of_its_messages() -> None:
    thread = begun(typed("u1"), call("c1"), output("c1"), said("a1", "one"))
    stood = [e.item for e in thread.history]
    first = compacted(thread, typed("u1"), SUMMARY)
    told = compacted(thread, *stood, method="undo")
    assert told[CONTEXT] == first[CONTEXT]
    answer = first[CONTEXT]["assistant_messages"][0]
    assert told[METADATA][3]["retained_source"]["revision"] == answer["revision"]
    numbers = [one["history_sequence"] for one in told[METADATA]]
    assert numbers == [1, 6, 7, 8], "what was gone is new"


def test_a_revision_is_one_for_a_message_and_has_the_form_of_a_uuid() -> None:
    told = [retained(begun(typed("u1"), typed("u2")), [], {})[CONTEXT]["user_messages"] for _ in range(2)]
    assert told[0] == told[1] and told[0][0]["revision"] != told[0][1]["revision"]
    form = r"retained_[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert re.fullmatch(form, told[0][0]["revision"])


def test_a_host_without_turns_writes_neither_key() -> None:
    thread = Thread()
    thread.apply(SessionStarted(thread_id="T", timestamp="2026-01-01T00:00:00.000Z", cwd=""), 0)
    with_items(thread, typed("u1", turn=None))
    assert compacted(thread, typed("u1", turn=None), SUMMARY) == {} == whole(thread).payload
    thread.apply(TurnStarted("t1"), thread.next_ordinal)
    assert retained(thread, [SUMMARY], {})[CONTEXT]["user_messages_incomplete"]


def test_a_fork_tells_what_its_parent_did_before_it_has_a_turn() -> None:
    parent = begun(typed("u1"), said("a1", "one"))
    compacted(parent, typed("u1"), SUMMARY)
    child = Thread()
    child.apply(SessionStarted(thread_id="C", timestamp="2026-01-01T00:00:00.000Z", cwd="/w"), 0)
    child.apply(whole(parent), 1)
    assert whole(child).payload == whole(parent).payload != {}


# --- sessions ------------------------------------------------------------------------------------------------------


def folder_session(folder: Path, replies: list[Reply]) -> Session:
    provider = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)
    model = ScriptedModel(replies, profile=Profile(slug="m", context_window=100_000), provider=provider)
    return Session.start(model=model, cwd=folder, home=folder / "home", instructions="BASE")


def test_a_session_writes_both_keys_and_a_resume_knows_them(tmp_path: Path) -> None:
    full = usage(95_000, 10)
    replies = [
        text_reply("one", usage=full),
        text_reply("SUMMARY", usage=usage(400, 10)),
        text_reply("two", usage=full),
        text_reply("SUMMARY AGAIN", usage=usage(400, 10)),
        text_reply("three", usage=usage(400, 10)),
    ]

    async def go() -> Path:
        async with folder_session(tmp_path, replies) as session:
            for text in ("first", "second", "third"):
                await session.send(text)
            assert session.path is not None
            assert same_state(session.memory.thread, read_thread(session.path))
            session.memory.undo()
            assert same_state(session.memory.thread, read_thread(session.path))
            return session.path

    lines = [json.loads(line) for line in asyncio.run(go()).read_text(encoding="utf-8").splitlines()]
    payloads = [line["payload"] for line in lines if line["type"] == "compacted"]
    assert len(payloads) == 3
    for payload in payloads:
        assert len(payload[METADATA]) == len(payload["replacement_history"])
        numbers = [one["history_sequence"] for one in payload[METADATA]]
        assert len(set(numbers)) == len(numbers)
    texts = [[one["text"] for one in payload[CONTEXT]["user_messages"]] for payload in payloads]
    assert texts == [["first"], ["first", "second"], ["first", "second", "third"]]
    assert [one["order"] for one in payloads[2][CONTEXT]["user_messages"]] == [0, 2, 4]
    assert list(payloads[0])[:4] == ["message", "replacement_history", METADATA, CONTEXT]


def test_a_checkpoint_of_the_real_program_is_written_again_as_it_was() -> None:
    lines = lines_of(ROLLOUTS / "m_multi_compact.jsonl")
    place = next(place for name, place in checkpoints() if name == "m_multi_compact")
    theirs = decode(lines[place], place)
    assert theirs is not None
    raw, _, _ = encode(theirs.record, thread_id="T", turn_id=None, timestamp="", ordinal=place)
    again = decode(raw, place)
    assert again is not None and isinstance(again.record, Compacted) and isinstance(theirs.record, Compacted)
    assert again.record.payload == theirs.record.payload and list(json.loads(raw)["payload"])[:-1] == list(
        json.loads(lines[place])["payload"]
    )
    count = len(theirs.record.history or ())
    assert told_by(again.record, count) == told_by(theirs.record, count) != told_by(theirs.record, 1_000)
