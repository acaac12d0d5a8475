"""Budgets, the middle cut, list outputs and the shape of command output."""

from __future__ import annotations

import hashlib
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.truncate import (
    Budget,
    Captured,
    cut_middle,
    cut_parts,
    exec_output,
    format_cut,
    format_cut_parts,
    output_budget,
    policy_with_limit,
    recording_budget,
    tokens_for,
    well_formed,
)

LONG = "this is an example of a long output that should be truncated"
FACES = "😀" * 10 + "\nsecond line with text\n"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def captured(text: str | bytes) -> Captured:
    raw = text.encode() if isinstance(text, str) else text
    lines = raw.count(b"\n") + (not raw.endswith(b"\n") and raw != b"")
    return Captured(head=raw, total_bytes=len(raw), lines=lines)


def text_part(text: str) -> dict[str, str]:
    return {"type": "input_text", "text": text}


# --- budgets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("byte_count", "tokens"), [(-1, 0), (0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_a_token_is_four_bytes_begun(byte_count: int, tokens: int) -> None:
    assert tokens_for(byte_count) == tokens


def test_configured_limit_keeps_the_models_unit() -> None:
    assert policy_with_limit(Budget("tokens", 10_000), 50) == Budget("tokens", 50)
    assert policy_with_limit(Budget("bytes", 10_000), 50) == Budget("bytes", 200)
    assert policy_with_limit(Budget("bytes", 10_000), 0) == Budget("bytes", 0)
    assert policy_with_limit(Budget("bytes", 10_000), None) == Budget("bytes", 10_000)


@pytest.mark.parametrize(("limit", "allowed"), [(0, 0), (1, 2), (5, 6), (7, 9), (10_000, 12_000)])
def test_recording_allows_a_fifth_more_rounded_up(limit: int, allowed: int) -> None:
    assert recording_budget(Budget("tokens", limit)) == Budget("tokens", allowed)
    assert recording_budget(Budget("bytes", limit)) == Budget("bytes", allowed)


def test_a_call_gets_the_smaller_of_what_it_asks_and_the_policy() -> None:
    assert output_budget(Budget("tokens", 20_000), None) == Budget("tokens", 10_000)
    assert output_budget(Budget("tokens", 100), 1_000) == Budget("tokens", 100)
    assert output_budget(Budget("tokens", 100), 0) == Budget("tokens", 0)
    assert output_budget(Budget("bytes", 400), 99) == Budget("tokens", 99)
    assert output_budget(Budget("bytes", 400), 100) == Budget("bytes", 400)


# --- the middle cut ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "budget", "expected"),
    [
        (LONG, Budget("tokens", 5), "this is an…10 tokens truncated… truncated"),
        (LONG, Budget("bytes", 30), "this is an exam…30 chars truncated…ld be truncated"),
        ("example output\n", Budget("tokens", 1), "ex…3 tokens truncated…t\n"),
        ("example output\n", Budget("bytes", 1), "…14 chars truncated…\n"),
        (FACES, Budget("tokens", 8), "😀😀😀😀…8 tokens truncated… line with text\n"),
        (FACES, Budget("bytes", 20), "😀😀…21 chars truncated…with text\n"),
        ("😀😀😀😀😀", Budget("bytes", 14), "😀…3 chars truncated…😀"),
        ("abcdef", Budget("tokens", 0), "…2 tokens truncated…"),
        ("abcdef", Budget("bytes", 0), "…6 chars truncated…"),
        ("é", Budget("bytes", 1), "…1 chars truncated…"),
    ],
)
def test_middle_cut_keeps_both_ends_around_a_marker(text: str, budget: Budget, expected: str) -> None:
    assert cut_middle(text, budget) == expected


@pytest.mark.parametrize("budget", [Budget("tokens", 0), Budget("bytes", 0), Budget("tokens", 9)])
def test_empty_text_stays_empty(budget: Budget) -> None:
    assert cut_middle("", budget) == ""
    assert format_cut("", budget) == ""


def test_text_of_exactly_the_budget_is_not_cut() -> None:
    assert cut_middle("é" * 20, Budget("bytes", 40)) == "é" * 20
    assert cut_middle("é" * 20, Budget("tokens", 10)) == "é" * 20
    assert cut_middle("é" * 20 + "x", Budget("tokens", 10)) != "é" * 20 + "x"


@pytest.mark.parametrize(
    ("text", "head", "removed", "tail", "total", "digest"),
    [
        (
            "a" * 14_999 + "😀" * 10 + "b" * 40_000,
            "a" * 14_999,
            25_010,
            "b" * 15_000,
            30_026,
            "fbd91ceb06b03a95e6c5b9d423b929dc764f6f87c6fb6abb1812c30210fe04c0",
        ),
        (
            "a" * 40_000 + "漢" * 5_000 + "z",
            "a" * 15_000,
            25_001,
            "漢" * 4_999 + "z",
            30_025,
            "00aa0216ffae75691dfcd2729a9795c00d21853180116894b7e2c1a426a7012f",
        ),
    ],
    ids=["in the head", "in the tail"],
)
def test_s11_a_character_on_the_edge_is_left_out_whole(
    text: str, head: str, removed: int, tail: str, total: int, digest: str
) -> None:
    cut = cut_middle(text, Budget("bytes", 30_000))
    assert cut == f"{head}…{removed} chars truncated…{tail}"
    assert (len(cut.encode()), sha256(cut)) == (total, digest)


def test_s11_every_small_budget_keeps_whole_characters_within_it() -> None:
    text = "aé漢😀" * 12
    assert len(text.encode()) == 120
    for limit in range(201):
        for budget in (Budget("bytes", limit), Budget("tokens", limit)):
            head, marker, tail = cut_middle(text, budget).partition("…")
            if not marker:
                assert head == text
                continue
            kept = head, tail.rpartition("…")[2]
            assert text.startswith(kept[0])
            assert text.endswith(kept[1])
            assert len("".join(kept).encode()) <= budget.bytes


def test_s12_one_long_line_uses_the_whole_budget() -> None:
    line = "".join(f'"k{i:05d}":{i % 10},' for i in range(5_454))
    line = f"{{{line[:-1]}".ljust(59_999) + "}"
    cut = cut_middle(line, Budget("tokens", 1_000))
    assert cut == line[:2_000] + "…14000 tokens truncated…" + line[-2_000:]
    assert sha256(cut) == "0bf911ba7d73d7f4bc4e037a2f7861844c5374a93f475d74d11b4402103326bf"
    header = "Warning: truncated output (original token count: 15000)\nTotal output lines: 1\n\n"
    assert format_cut(line, Budget("tokens", 1_000)) == header + cut


@pytest.mark.parametrize("letter", ["x", "漢"])
def test_s12_a_huge_line_needs_less_than_three_times_its_size(letter: str) -> None:
    line = letter * (50_000_000 // len(letter.encode()))
    tracemalloc.start()
    try:
        cut = cut_middle(line, Budget("tokens", 1_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(cut) < 4_100
    assert peak < 3 * 50_000_000


def test_s13_a_cut_output_is_recorded_as_it_is() -> None:
    log = "".join(f"unit {i:04d} ok: widget suite, step {i % 7}, elapsed {i * 3 % 97} ms\n" for i in range(1, 1000))
    assert len(log) == 49_847
    policy = Budget("tokens", 2_500)
    formatted = format_cut(log, policy)
    header = "Warning: truncated output (original token count: 12462)\nTotal output lines: 999\n\n"
    assert formatted.startswith(header)
    assert sha256(formatted.removeprefix(header)) == "bd20702d4110142dacbe92912290a882b56647fc32f6b48bcfd73a91df64e352"

    output = exec_output(captured(log), policy, chunk_id="0a1b2c", wall_seconds=1.5, exit_code=0)
    assert output.endswith(formatted)
    for text in (formatted, output):
        assert cut_middle(text, recording_budget(policy)) == text
        assert text.count("…9962 tokens truncated…") == text.count("tokens truncated") == 1


def slow_cut(text: str, budget: Budget) -> str:
    """The middle cut as spec §2.2 tells it, character by character."""
    total = len(text.encode())
    if total <= budget.bytes:
        return text
    left, right = budget.bytes // 2, budget.bytes - budget.bytes // 2
    head, tail, position = "", "", 0
    for character in text:
        end = position + len(character.encode())
        head += character if end <= left else ""
        tail += character if position >= total - right else ""
        position = end
    removed = len(text) - len(head) - len(tail)
    if budget.mode == "bytes":
        return f"{head}…{removed} chars truncated…{tail}"
    return f"{head}…{tokens_for(total - budget.bytes)} tokens truncated…{tail}"


@settings(database=None, deadline=None)
@given(st.text(), st.integers(0, 40), st.sampled_from(["bytes", "tokens"]))
def test_middle_cut_is_what_a_walk_over_the_characters_gives(text: str, limit: int, mode: Any) -> None:
    assert cut_middle(text, Budget(mode, limit)) == slow_cut(text, Budget(mode, limit))


@settings(database=None, deadline=None)
@given(st.text(st.characters(codec=None) | st.sampled_from("\ud83d\ude00"), max_size=60), st.integers(0, 20))
def test_lone_surrogates_never_raise_and_never_come_out(text: str, limit: int) -> None:
    for budget in (Budget("bytes", limit), Budget("tokens", limit)):
        cut_middle(text, budget).encode()
        format_cut(text, budget).encode()
        for parts in (
            cut_parts([text_part(text)], budget),
            format_cut_parts([text_part(text), text_part("x")], budget),
        ):
            for part in parts:
                part["text"].encode()


def test_a_lone_surrogate_is_a_replacement_character_and_a_pair_is_joined() -> None:
    assert well_formed("a\ud83dz \ude00 \ud83d\ude80 é") == "a\ufffdz \ufffd 🚀 é"
    assert cut_middle("a\ud83d", Budget("tokens", 9)) == "a\ufffd"


@pytest.mark.parametrize(
    ("text", "lines"),
    [("abcdef", 1), ("abc\ndef", 2), ("abc\ndef\n", 2), ("a\r\nb\r\nc", 3), ("a\rb\rc", 1), ("\n" * 6, 6)],
)
def test_header_counts_lines_that_a_newline_ends(text: str, lines: int) -> None:
    warning = f"Warning: truncated output (original token count: {tokens_for(len(text))})"
    assert format_cut(text, Budget("bytes", 1)).startswith(f"{warning}\nTotal output lines: {lines}\n\n…")


# --- a list of parts ----------------------------------------------------------------------------------------

IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


def test_texts_of_a_list_share_one_budget_in_order() -> None:
    parts = [text_part("a" * 8), IMAGE, text_part("b" * 40), text_part("c"), text_part("")]
    assert cut_parts(parts, Budget("tokens", 4)) == [
        text_part("a" * 8),
        IMAGE,
        text_part("bbbb…8 tokens truncated…bbbb"),
        text_part("[omitted 2 text items ...]"),
    ]
    assert cut_parts(parts, Budget("bytes", 18))[2] == text_part("bbbbb…30 chars truncated…bbbbb")


def test_a_list_within_the_budget_is_unchanged() -> None:
    parts = [text_part("a" * 8), IMAGE, text_part("b" * 8)]
    assert cut_parts(parts, Budget("tokens", 4)) == parts
    assert cut_parts(parts, Budget("bytes", 16)) == parts
    assert cut_parts([], Budget("bytes", 0)) == []


def test_tokens_of_a_list_are_counted_part_by_part() -> None:
    # Five bytes are two tokens: two such texts fill a budget of four although ten bytes would be three.
    parts = [text_part("abcde"), text_part("fghij"), text_part("k")]
    assert cut_parts(parts, Budget("tokens", 4)) == [*parts[:2], text_part("[omitted 1 text items ...]")]


def test_audio_is_kept_only_when_it_fits_and_leaves_the_rest_its_budget() -> None:
    long = {"type": "input_audio", "audio_url": "data:audio/wav;base64," + "A" * 78}
    short = {"type": "input_audio", "input_audio": {"data": "A" * 12, "format": "wav"}}
    parts = [long, short, text_part("abcdefgh"), text_part("x")]
    assert cut_parts(parts, Budget("tokens", 5)) == [
        short,
        text_part("abcdefgh"),
        text_part("[omitted 1 text items ...]"),
        text_part("[omitted 1 audio items ...]"),
    ]
    assert cut_parts(parts, Budget("bytes", 20))[0] == short


def test_images_encrypted_and_unknown_parts_are_kept_at_no_cost() -> None:
    parts = [IMAGE, {"type": "encrypted_content", "encrypted_content": "x" * 99}, {"type": "hologram", "text": 5}]
    assert cut_parts(parts, Budget("bytes", 0)) == parts
    assert format_cut_parts(parts, Budget("bytes", 0)) == parts


def test_formatted_list_becomes_one_headed_text_before_the_rest() -> None:
    parts = [text_part(""), IMAGE, text_part("a" * 20), text_part(""), text_part("b" * 20)]
    joined = "a" * 20 + "\n\n" + "b" * 20
    assert format_cut_parts(parts, Budget("bytes", 42)) == parts
    assert format_cut_parts(parts, Budget("tokens", 5)) == [text_part(format_cut(joined, Budget("tokens", 5))), IMAGE]
    assert "original token count: 11)\nTotal output lines: 3\n" in format_cut(joined, Budget("tokens", 5))


# --- the output of a command ----------------------------------------------------------------------------------


def test_command_output_has_the_real_programs_header() -> None:
    policy = Budget("tokens", 10_000)
    done = exec_output(captured("hello\n"), policy, chunk_id="1d4f0a", wall_seconds=0.12344, exit_code=7)
    assert done == (
        "Chunk ID: 1d4f0a\nWall time: 0.1234 seconds\nProcess exited with code 7\n"
        "Original token count: 2\nOutput:\nhello\n"
    )
    running = exec_output(captured(""), policy, chunk_id="1d4f0a", wall_seconds=10, session_id=53822)
    assert running == (
        "Chunk ID: 1d4f0a\nWall time: 10.0000 seconds\nProcess running with session ID 53822\n"
        "Original token count: 0\nOutput:\n"
    )


def test_a_note_stands_before_a_cut_body_and_counts_against_the_whole() -> None:
    policy = Budget("tokens", 100)
    output = exec_output(
        captured("x" * 4_000), policy, chunk_id="000000", wall_seconds=0, exit_code=124, note="timed out\n"
    )
    assert "Output:\ntimed out\nWarning: truncated output (original token count: 1000)\n" in output
    assert len(output.encode()) <= recording_budget(policy).bytes


def test_bytes_that_the_collector_dropped_are_named_in_body_and_header() -> None:
    kept = Captured(head=b"a" * 10 + b"\xe6\xb5", tail=b"\x8b" + b"z" * 10, omitted=5, total_bytes=28, lines=1)
    assert kept.text() == "a" * 10 + "\ufffd\n... 5 bytes omitted ...\n\ufffd" + "z" * 10
    output = exec_output(
        kept, Budget("tokens", 10_000), chunk_id="000000", wall_seconds=0, exit_code=0, max_output_tokens=2
    )
    assert output.endswith(
        "Output:\nWarning: truncated output (original token count: 7)\n... 5 bytes omitted ...\n\n"
        "aaaa…11 tokens truncated…zzzz"
    )


@pytest.mark.parametrize("mode", ["bytes", "tokens"])
@pytest.mark.parametrize("limit", [0, 1, 7, 40, 90, 120, 200, 1_000])
def test_command_output_is_within_the_recording_budget_or_cut_to_it(mode: Any, limit: int) -> None:
    policy = Budget(mode, limit)
    allowed = recording_budget(policy)
    output = exec_output(captured("line of output\n" * 5_000), policy, chunk_id="000000", wall_seconds=0, exit_code=0)
    marker = output[output.index("…") : output.rindex("…") + 1] if "…" in output else ""
    assert len(output.encode()) - len(marker.encode()) <= allowed.bytes + 3
