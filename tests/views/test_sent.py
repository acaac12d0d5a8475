"""Every request of a session can be made again from its log, byte for byte."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from refold.core.records import Known, RequestSent
from refold.errors import ModelRefused, RolloutCorrupt
from refold.rollout import read_lines
from refold.session import Session
from refold.testing import Reply, ScriptedModel, call_reply, text_reply, usage
from refold.tools.functions import tool
from refold.views.sent import common_prefix, sent


@tool
def look(n: int) -> str:
    """Look at something."""
    return f"seen {n}"


class Heard(ScriptedModel):
    """A scripted model that keeps the bodies as they came. Mutable: `bodies` grows."""

    def __init__(self, script: Any) -> None:
        super().__init__(script)
        self.sent: list[bytes] = []

    async def sample(self, request: Any) -> Any:
        self.sent.append(request.body())
        async for event in super().sample(request):
            yield event


def played(folder: Path) -> tuple[list[bytes], Path]:
    """A session with calls, an image, a compaction by hand whose first request is too large, and one after a resume."""
    overflow = Reply(status=400, body={"error": {"code": "context_length_exceeded", "message": "too long"}})
    first = Heard([call_reply("look", {"n": 1}), text_reply("one", usage=usage(10, 1)), overflow, "SUMMARY", "two"])
    second = Heard([call_reply("look", {"n": 2}), call_reply("look", {"n": "no"}), "three"])
    picture = folder / "p.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n....")

    async def play() -> Path:
        home = folder / "home"
        async with Session.start(model=first, tools=[look], cwd=folder, home=home) as session:
            await session.send("begin \ud83d", images=[picture])
            await session.compact()
            await session.send("go on")
        async with Session.resume(session.id, model=second, tools=[look], cwd=folder, home=home) as session:
            await session.send("and on")
            assert session.path is not None
            return session.path

    path = asyncio.run(play())
    return first.sent + second.sent, path


def test_every_request_is_made_again_byte_for_byte(tmp_path: Path) -> None:
    heard, path = played(tmp_path)
    made = list(sent(read_lines(path)))
    assert [one.request.body() for one in made] == heard
    assert all(one.is_same for one in made)
    assert [one.number for one in made] == list(range(1, len(heard) + 1))
    assert [one.recorded.kind for one in made] == ["turn", "turn", "compaction", "compaction", *["turn"] * 4]
    assert [one.recorded.dropped for one in made][2:4] == [0, 1]
    assert [one.recorded.sha256 for one in made] == [sha256(body).hexdigest() for body in heard]
    assert [one.recorded.size for one in made] == [len(body) for body in heard]


def test_schemas_and_spelling_are_stored_once(tmp_path: Path) -> None:
    _, path = played(tmp_path)
    records = [line.record for line in read_lines(path)]
    known = [record.hash for record in records if isinstance(record, Known)]
    assert len(known) == len(set(known))
    assert {one.tools for one in records if isinstance(one, RequestSent)} <= set(known)


def test_a_request_that_is_not_the_one_that_went_out_is_told(tmp_path: Path) -> None:
    heard, path = played(tmp_path)
    changed = path.with_name("changed.jsonl")
    changed.write_bytes(path.read_bytes().replace(b"go on", b"go OFF"))
    made = list(sent(read_lines(changed)))
    assert [one.is_same for one in made] == [b"go on" not in body for body in heard]


def test_a_log_that_lost_what_a_request_refers_to_says_so(tmp_path: Path) -> None:
    _, path = played(tmp_path)
    cut = path.with_name("cut.jsonl")
    cut.write_bytes(b"".join(line for line in path.read_bytes().splitlines(True) if b'"kind":"known"' not in line))
    with pytest.raises(RolloutCorrupt, match="refers to"):
        list(sent(read_lines(cut)))


def test_a_refused_request_is_in_the_log_too(tmp_path: Path) -> None:
    model = Heard([Reply(status=400, body={"error": {"message": "no"}})])

    async def play() -> Path:
        async with Session.start(model=model, cwd=tmp_path, home=tmp_path / "home") as session:
            with pytest.raises(ModelRefused):
                await session.send("hi")
            assert session.path is not None
            return session.path

    (one,) = sent(read_lines(asyncio.run(play())))
    assert (one.is_same, one.request.body()) == (True, model.sent[0])


@pytest.mark.parametrize(
    ("one", "other", "length"),
    [(b"", b"", 0), (b"abc", b"abd", 2), (b"abc", b"abc", 3), (b"a" * 9, b"a" * 5, 5), (b"x", b"y", 0)],
)
def test_what_two_bodies_share(one: bytes, other: bytes, length: int) -> None:
    assert common_prefix(one, other) == common_prefix(other, one) == length
