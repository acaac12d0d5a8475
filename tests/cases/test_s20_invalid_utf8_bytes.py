"""S20: bytes that are not UTF-8 cost their characters, and a line of junk costs that line (the reading part)."""

from __future__ import annotations

from pathlib import Path

from refold.core.profile import Profile, Provider
from refold.core.prompt import prompt_from
from refold.core.records import LineDamaged
from refold.core.thread import Thread
from refold.core.wire import Identity, Wire
from refold.rollout import read_lines

CASE = Path(__file__).parent.parent / "data" / "cases" / "S20-invalid-utf8-bytes"
FILE = CASE / "rollout.jsonl"
PROFILE = Profile(slug="m")


def test_the_items_are_all_read() -> None:
    history = Thread.replay(read_lines(FILE)).history
    assert [e.item.get("role") or e.item["type"] for e in history] == [
        "user",
        "function_call",
        "function_call_output",
        "assistant",
    ]


def test_each_bad_byte_is_one_replacement_character() -> None:
    history = Thread.replay(read_lines(FILE)).history
    assert history[2].item["output"] == "name: \ufffd\ufffd\ufffd end"


def test_the_junk_and_the_replacement_are_reported_with_their_lines() -> None:
    lines = list(read_lines(FILE))
    replaced, junk = (line for line in lines if line.warning)
    assert (replaced.ordinal, junk.ordinal) == (7, 8)
    assert str(replaced.warning).startswith("line 7, byte ")
    assert str(replaced.warning).endswith(": bytes that are not UTF-8 were replaced")
    assert isinstance(junk.record, LineDamaged)
    assert str(junk.warning).startswith("line 8, byte ")


def test_the_prompt_is_strict_utf8() -> None:
    prompt = prompt_from(Thread.replay(read_lines(FILE)).history, PROFILE, base_instructions=None)
    assert Wire(Provider(), PROFILE).request(prompt, Identity(thread_id="T")).body().decode("utf-8", "strict")


def test_reading_keeps_the_bad_bytes_in_the_file() -> None:
    before = FILE.read_bytes()
    Thread.replay(read_lines(FILE))
    assert FILE.read_bytes() == before
    assert b"\xff\xfe\xe9" in before
