"""Shadow: what can be read beside an encrypted item, when it steps in, and that it is never sent before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.core.compaction.shadow import seal_of
from refold.core.config import parse_config
from refold.core.fragments import SUMMARY_MARK
from refold.core.items import message_text
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted
from refold.core.thread import same_state
from refold.errors import ModelRefused, RefoldError
from refold.model.scripted import Reply, ScriptedModel
from refold.rollout.reader import read_lines
from refold.session.clock import Clock
from refold.session.events import Event, Notice, Waiting
from refold.session.memory import Memory, read_thread
from refold.session.session import Session
from refold.testing import text_reply, usage
from refold.views.context import context
from refold.views.sent import sent
from refold.views.transcript import transcript

SEAL, OTHER_SEAL = "Zm9v" * 40, "YmF6" * 40
COMPACTED = Reply(items=({"type": "compaction", "id": "cmp_1", "encrypted_content": SEAL},), usage=usage(5_000, 200))
AGAIN = Reply(items=({"type": "compaction", "id": "cmp_2", "encrypted_content": OTHER_SEAL},), usage=usage(5_000, 200))
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VjcmV0"}
FULL = text_reply("I will use tabs because the file does.", usage=usage(95_000, 10))
NOT_VERIFIED = "The encrypted content gAAA...c90= could not be verified."
REFUSED = Reply(
    status=400,
    body={
        "error": {
            "message": NOT_VERIFIED,
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_encrypted_content",
        }
    },
)
PROFILE = Profile(slug="m", context_window=100_000)


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0


def model(*replies: Any, provider: str = "p", profile: Profile = PROFILE, **more: Any) -> ScriptedModel:
    facts: dict[str, Any] = {"compaction": "remote", **more}
    where = Provider(id=provider, name=provider, base_url="http://127.0.0.1:1", env_key=None, **facts)
    return ScriptedModel(list(replies), profile=profile, provider=where)


def talk(
    open_session: Callable[[], Session], *texts: str, then: Callable[[Session], Any] | None = None
) -> tuple[Session, list[Any]]:
    """Say these texts; the session, closed, and the last turn's events (its error last). Live is as replayed."""

    async def go() -> tuple[Session, list[Any]]:
        events: list[Any] = []
        async with asyncio.timeout(20), open_session() as session:
            for text in texts:
                events = []
                try:
                    async for event in session.send(text):
                        events.append(event)
                except RefoldError as error:
                    events.append(error)
            if then is not None:
                await then(session)
        if session.path is not None and session.path.exists():
            assert same_state(session.memory.thread, read_thread(session.path))
        return session, events

    return asyncio.run(go())


def start(answering: ScriptedModel, folder: Path, **settings: Any) -> Callable[[], Session]:
    config = parse_config(settings, "test")
    options: dict[str, Any] = {"home": folder / "home", "instructions": "BASE", "config": config}
    return lambda: Session.start(model=answering, cwd=folder, clock=Hasty(), **options)


def resume(session: Session, answering: ScriptedModel, folder: Path) -> Callable[[], Session]:
    return lambda: Session.resume(session.id, model=answering, home=folder / "home", clock=Hasty())


def fork(session: Session, answering: ScriptedModel, folder: Path) -> Callable[[], Session]:
    return lambda: Session.fork(session.id, model=answering, home=folder / "home", clock=Hasty())


def compacted(folder: Path, *more: Any, texts: tuple[str, ...] = (), **provider: Any) -> tuple[Session, ScriptedModel]:
    """A session whose first turn the provider compacted."""
    answering = model(FULL, COMPACTED, text_reply("two"), *more, **provider)
    session, _ = talk(start(answering, folder), "Make the parser faster", "go on", *texts)
    return session, answering


def checkpoints(session: Session) -> list[Compacted]:
    assert session.path is not None
    return [line.record for line in read_lines(session.path) if isinstance(line.record, Compacted)]


def seals(request: dict[str, Any]) -> list[str]:
    return [item["encrypted_content"] for item in request["input"] if item["type"] == "compaction"]


def summaries(request: dict[str, Any]) -> list[str]:
    texts = [message_text(item) for item in request["input"] if item.get("role") == "user"]
    return [text.removeprefix(SUMMARY_MARK) for text in texts if text.startswith(SUMMARY_MARK)]


def notices(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


# --- kept ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["remote", "endpoint"])
def test_checkpoint_keeps_an_outline_and_its_provider_beside_the_item_and_never_sends_it(
    way: str, tmp_path: Path
) -> None:
    session, answering = compacted(tmp_path, text_reply("three"), texts=("once more",), compaction=way)
    (checkpoint,) = checkpoints(session)
    assert checkpoint.facts["provider"] == "p"
    shadow = checkpoint.facts["shadow"]
    assert "Make the parser faster" in shadow and "I will use tabs" in shadow and session.id[-12:] in shadow
    assert not any("Outline of the log" in str(request) for request in answering.requests)
    assert [seals(request) for request in answering.requests[2:]] == [[SEAL], [SEAL]]
    assert session.memory.thread.shadows[SEAL].text == shadow


def test_outline_keeps_to_a_quarter_of_the_limit(tmp_path: Path) -> None:
    small = Profile(slug="m", context_window=4_000)
    long = [f"Goal number {number}: " + "word " * 60 for number in range(40)]
    full = text_reply("ok", usage=usage(3_700, 10))
    answering = model(*[text_reply("ok", usage=usage(100, 10))] * 39, full, COMPACTED, text_reply("two"), profile=small)
    session, _ = talk(start(answering, tmp_path), *long, "go on")
    text = checkpoints(session)[0].facts["shadow"]
    assert 400 < len(text.encode()) <= 4_000 * 9 // 10 // 4 * 4


def test_summary_has_no_shadow(tmp_path: Path) -> None:
    answering = model(FULL, text_reply("SUMMARY"), text_reply("two"), compaction="local")
    session, _ = talk(start(answering, tmp_path), "first", "second")
    (checkpoint,) = checkpoints(session)
    assert "shadow" not in checkpoint.facts and session.memory.thread.shadows == {}


def test_second_compaction_goes_on_from_the_first_shadow(tmp_path: Path) -> None:
    full = text_reply("three", usage=usage(95_000, 10))
    session, answering = compacted(tmp_path, full, AGAIN, text_reply("four"), texts=("now the lexer", "and now?"))
    first, second = checkpoints(session)
    assert seals(answering.requests[-1]) == [OTHER_SEAL]
    assert "I will use tabs" in first.facts["shadow"] and "now the lexer" not in first.facts["shadow"]
    assert "I will use tabs" in second.facts["shadow"] and "now the lexer" in second.facts["shadow"]


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refusal",
    [
        REFUSED,
        Reply(status=400, body={"error": {"message": "Could not decode the compaction blob."}}),
        Reply(status=502, body={"error": {"message": f"upstream: {NOT_VERIFIED}"}}),
        Reply(fail={"code": "invalid_encrypted_content", "message": NOT_VERIFIED}),
        Reply(fail={"message": "The encrypted content for item cmp_1 could not be verified."}),
        Reply(error={"error": {"code": "invalid_encrypted_content", "message": "no"}}),
    ],
    ids=["400", "words", "gateway", "failed", "failed, in words", "error event"],
)
def test_item_that_is_refused_is_replaced_by_its_outline_and_the_turn_goes_on(refusal: Reply, tmp_path: Path) -> None:
    answering = model(FULL, COMPACTED, text_reply("two"), refusal, text_reply("three"), text_reply("four"))
    session, events = talk(start(answering, tmp_path), "Make the parser faster", "go on", "once more")
    assert message_text(session.memory.thread.history[-1].item) == "three"
    before, after = answering.requests[3:5]
    assert seals(before) == [SEAL] and seals(after) == []
    place = [item["type"] for item in before["input"]].index("compaction")
    assert message_text(after["input"][place]).startswith(SUMMARY_MARK + "Outline of the log")
    rest = [index for index in range(len(before["input"])) if index != place]
    assert [after["input"][index] for index in rest] == [before["input"][index] for index in rest]
    assert [text for text in notices(events) if "cannot read the compacted history" in text]
    assert not [event for event in events if isinstance(event, Waiting)]
    *_, checkpoint = checkpoints(session)
    assert (checkpoint.facts["method"], checkpoint.facts["reason"]) == ("shadow", "encrypted_refused")
    assert checkpoint.window == checkpoints(session)[0].window and session.memory.thread.compactions == 1
    assert all(one.is_same for one in sent(read_lines(session.path)))  # type: ignore[arg-type]
    again, _ = talk(resume(session, answering, tmp_path), "and now?")
    assert summaries(answering.requests[-1]) == [checkpoint.facts.get("shadow") or summaries(after)[0]]
    assert len(checkpoints(again)) == 2


def test_refused_again_without_such_an_item_is_an_error(tmp_path: Path) -> None:
    session, _ = compacted(tmp_path, REFUSED, REFUSED)
    answering = model(REFUSED, REFUSED)
    session, events = talk(resume(session, answering, tmp_path), "once more")
    assert isinstance(events[-1], ModelRefused) and len(answering.requests) == 2
    assert len(checkpoints(session)) == 2


def test_other_refusals_and_other_items_change_nothing(tmp_path: Path) -> None:
    reasoned = Reply(items=(REASONING, *text_reply("three").items))
    session, _ = compacted(tmp_path, reasoned, texts=("think",))
    named = {
        "code": "invalid_encrypted_content",
        "message": "The encrypted content for item rs_1 could not be verified.",
    }
    plain = {"code": "invalid_parameter", "message": "This could not be verified; encrypted content was not looked at."}
    for body in (named, plain):
        answering = model(Reply(status=400, body={"error": body}))
        session, events = talk(resume(session, answering, tmp_path), "once more")
        assert isinstance(events[-1], ModelRefused) and len(answering.requests) == 1
    assert len(checkpoints(session)) == 1


def test_without_such_an_item_the_refusal_is_an_error(tmp_path: Path) -> None:
    answering = model(Reply(items=(REASONING, *text_reply("one").items)), REFUSED)
    session, events = talk(start(answering, tmp_path), "first", "second")
    assert isinstance(events[-1], ModelRefused) and checkpoints(session) == []


def test_encrypted_reasoning_of_the_same_account_goes_with_the_item(tmp_path: Path) -> None:
    reasoned = Reply(items=(REASONING, *text_reply("three").items))
    session, _ = compacted(tmp_path, reasoned, texts=("think",))
    answering = model(REFUSED, text_reply("four"))
    talk(resume(session, answering, tmp_path), "once more")
    kinds = [[item["type"] for item in request["input"]] for request in answering.requests]
    assert "reasoning" in kinds[0] and "reasoning" not in kinds[1]


@pytest.mark.parametrize("way", ["remote", "local", "endpoint"])
def test_item_that_is_refused_while_compacting_is_replaced_and_it_is_compacted_again(way: str, tmp_path: Path) -> None:
    full = text_reply("three", usage=usage(95_000, 10))
    session, _ = compacted(tmp_path, full, texts=("more",))
    result = text_reply("SUMMARY") if way == "local" else AGAIN
    answering = model(REFUSED, result, text_reply("four"), compaction=way)
    session, events = talk(resume(session, answering, tmp_path), "once more")
    assert message_text(session.memory.thread.history[-1].item) == "four"
    assert [one.facts["method"] for one in checkpoints(session)] == ["remote", "shadow", way]
    assert seals(answering.requests[0]) == [SEAL] and seals(answering.requests[1]) == []
    assert not [text for text in notices(events) if "asked for a summary instead" in text]
    assert all(one.is_same for one in sent(read_lines(session.path)))  # type: ignore[arg-type]


# --- another provider ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["local", "remote"])
def test_another_provider_is_given_the_outline_from_the_start(way: str, tmp_path: Path) -> None:
    session, _ = compacted(tmp_path)
    answering = model(text_reply("three"), provider="q", compaction=way)
    session, events = talk(resume(session, answering, tmp_path), "once more")
    assert seals(answering.requests[0]) == [] and "I will use tabs" in summaries(answering.requests[0])[0]
    assert [text for text in notices(events) if text.startswith("only p can read the compacted history, and q goes on")]
    *_, checkpoint = checkpoints(session)
    assert (checkpoint.facts["method"], checkpoint.facts["reason"]) == ("shadow", "provider_changed")


def test_same_provider_goes_on_with_the_item(tmp_path: Path) -> None:
    session, _ = compacted(tmp_path)
    answering = model(text_reply("three"))
    session, _ = talk(resume(session, answering, tmp_path), "once more")
    assert seals(answering.requests[0]) == [SEAL] and len(checkpoints(session)) == 1


def test_compaction_by_hand_with_another_provider_reads_the_outline(tmp_path: Path) -> None:
    session, _ = compacted(tmp_path)
    answering = model(text_reply("SUMMARY"), provider="q", compaction="local")
    session, _ = talk(resume(session, answering, tmp_path), then=lambda session: session.compact())
    assert seals(answering.requests[0]) == [] and "I will use tabs" in summaries(answering.requests[0])[0]
    assert [one.facts["method"] for one in checkpoints(session)] == ["remote", "shadow", "local"]


def test_host_with_its_own_loop_is_given_the_outline_where_it_compacts_with_another_provider(tmp_path: Path) -> None:
    session, _ = compacted(tmp_path)
    assert session.path is not None
    answering = model(text_reply("SUMMARY"), provider="q", compaction="local")
    with Memory.open(session.path, model=PROFILE) as memory:
        ended = asyncio.run(memory.make_room(answering, force=True))
        assert ended is not None and ended.installed
    assert seals(answering.requests[0]) == [] and "I will use tabs" in summaries(answering.requests[0])[0]


# --- forks, views, other files ---------------------------------------------------------------------------------------


def test_fork_and_a_fork_of_it_keep_the_shadow(tmp_path: Path) -> None:
    session, _ = compacted(tmp_path)
    for _ in range(2):
        again = model(text_reply("three"))
        session, _ = talk(fork(session, again, tmp_path), "in the fork")
        assert seals(again.requests[0]) == [SEAL]
    answering = model(REFUSED, text_reply("four"))
    session, _ = talk(resume(session, answering, tmp_path), "once more")
    assert "I will use tabs" in summaries(answering.requests[1])[0]


def test_fork_with_another_provider_is_given_the_outline(tmp_path: Path) -> None:
    session, _ = compacted(tmp_path)
    answering = model(text_reply("three"), provider="q", compaction="local")
    talk(fork(session, answering, tmp_path), "in the fork")
    assert seals(answering.requests[0]) == [] and "I will use tabs" in summaries(answering.requests[0])[0]


def test_item_without_a_shadow_is_replaced_by_what_the_history_still_tells(tmp_path: Path) -> None:
    session, _ = compacted(tmp_path)
    assert session.path is not None
    foreign = tmp_path / "foreign.jsonl"
    lines = session.path.read_text(encoding="utf-8").splitlines(keepends=True)
    foreign.write_text("".join(line.replace('"refold":{', '"other":{') for line in lines), encoding="utf-8")
    assert read_thread(foreign).shadows == {}
    answering = model(REFUSED, text_reply("three"))
    options: dict[str, Any] = {"in_place": True, "home": tmp_path / "home", "clock": Hasty()}
    _, events = talk(lambda: Session.resume(foreign, model=answering, **options), "once more")
    assert seals(answering.requests[1]) == [] and "Make the parser faster" in summaries(answering.requests[1])[0]
    assert [text for text in notices(events) if "an outline of what is left of it takes its place" in text]


def test_child_of_a_file_without_a_shadow_still_knows_who_made_the_item(tmp_path: Path) -> None:
    session, _ = compacted(tmp_path)
    assert session.path is not None
    foreign = tmp_path / "foreign.jsonl"
    lines = session.path.read_text(encoding="utf-8").splitlines(keepends=True)
    foreign.write_text("".join(line.replace('"refold":{', '"other":{') for line in lines), encoding="utf-8")
    for provider, kept in (("p", [SEAL]), ("q", [])):
        answering = model(text_reply("three"), provider=provider, compaction="local")
        child = lambda answering=answering: Session.resume(foreign, model=answering, home=tmp_path / "home")  # noqa: E731
        talk(child, "once more")
        assert seals(answering.requests[0]) == kept
        assert "Make the parser faster" in str(answering.requests[0])


def test_views_tell_of_the_shadow_where_they_show_the_item(tmp_path: Path) -> None:
    session, _ = compacted(tmp_path)
    assert session.path is not None
    (row,) = [row for row in transcript(read_lines(session.path)).rows if row.kind == "compaction"]
    assert "encrypted by p; its outline, never sent:\nOutline of the log" in row.text
    thread = read_thread(session.path)
    (shown,) = [row for row in context(thread, PROFILE).rows if row.kind == "compaction"]
    assert shown.preview.startswith("[encrypted, 160 characters] by p; an outline is kept: Outline of the log")
    assert shown.tokens == next(e.tokens for e in thread.history if seal_of(e.item))
