"""Reader: every line of a file that anybody left behind, with its damage named and the rest kept."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from refold.core.items import message_text
from refold.core.records import ItemRecorded, Line, LineDamaged, LineKept
from refold.errors import RolloutCorrupt, RolloutError, RolloutNotFound
from refold.rollout import read_lines
from refold.rollout.reader import find_line, is_zstd

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CASES = Path(__file__).parents[1] / "data" / "cases"
META = {"type": "session_meta", "payload": {"id": "t", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/w"}}


def said(text: str, **fields: Any) -> dict[str, Any]:
    part = {"type": "input_text", "text": text}
    return {**fields, "type": "response_item", "payload": {"type": "message", "role": "user", "content": [part]}}


def jsonl(*values: Any) -> bytes:
    return b"".join(json.dumps(value, ensure_ascii=False).encode() + b"\n" for value in values)


def written(folder: Path, data: bytes) -> Path:
    path = folder / "rollout.jsonl"
    path.write_bytes(data)
    return path


def texts(lines: list[Line]) -> list[str]:
    return [message_text(line.record.item) for line in lines if isinstance(line.record, ItemRecorded)]


def warnings(lines: list[Line]) -> list[str]:
    return [line.warning for line in lines if line.warning]


# --- spellings ------------------------------------------------------------------------------------------------------


def test_byte_order_mark_and_crlf_are_not_part_of_the_lines(tmp_path):
    path = next((CASES / "S19-bom-and-crlf").rglob("*0013.jsonl"))
    clean = written(tmp_path, path.read_bytes().removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n"))
    found = list(read_lines(path))
    assert found == list(read_lines(clean))  # S19.2
    assert len(texts(found)) == 2
    assert not warnings(found)


def test_byte_order_mark_inside_a_text_stays(tmp_path):
    path = written(tmp_path, b"\xef\xbb\xbf" + jsonl(META, said("a\ufeffb")))
    assert texts(list(read_lines(path))) == ["a\ufeffb"]  # S19.3


def test_blank_lines_are_skipped_but_counted(tmp_path):
    path = written(tmp_path, b"\n" + jsonl(META) + b" \t\r\n" + jsonl(said("x")) + b"\n\n")
    found = list(read_lines(path))
    assert [line.ordinal for line in found] == [2, 4]
    assert not warnings(found)  # S19.5


def test_last_line_needs_no_line_end(tmp_path):
    path = written(tmp_path, jsonl(META, said("x"))[:-1])
    assert texts(list(read_lines(path))) == ["x"]


def test_own_ordinal_counts_before_the_line_number(tmp_path):
    path = written(tmp_path, jsonl({**META, "ordinal": 40}, said("x", ordinal=41), said("y", ordinal=True)))
    assert [line.ordinal for line in read_lines(path)] == [40, 41, 3]


def test_empty_file_has_no_lines(tmp_path):
    assert list(read_lines(written(tmp_path, b""))) == []


# --- damage ---------------------------------------------------------------------------------------------------------


def test_torn_last_line_is_named_with_its_place():
    path = CASES / "S18-partial-line" / "tail_cut.jsonl"
    found = list(read_lines(path))
    offset = path.read_bytes().rindex(b"\n") + 1
    [warning] = warnings(found)
    assert warning.startswith(f"line 8, byte {offset}: not JSON")  # S18.1
    assert sum(isinstance(line.record, ItemRecorded) for line in found) == 3
    assert isinstance(found[-1].record, LineDamaged)


def test_line_glued_to_its_retry_is_one_warning():
    found = list(read_lines(CASES / "S18-partial-line" / "glued.jsonl"))
    [warning] = warnings(found)
    assert warning.startswith("line 8, byte ")  # S18.3
    assert [line.ordinal for line in found if not line.warning] == [1, 2, 3, 4, 5, 6, 7, 9]


def test_bytes_that_are_not_text_are_replaced_and_junk_is_skipped():
    found = list(read_lines(CASES / "S20-invalid-utf8-bytes" / "rollout.jsonl"))
    items = [line.record.item for line in found if isinstance(line.record, ItemRecorded)]
    assert [item.get("role") or item["type"] for item in items] == [
        "user",
        "function_call",
        "function_call_output",
        "assistant",
    ]
    assert items[2]["output"].endswith("name: \ufffd\ufffd\ufffd end")  # S20.2
    replaced, junk = warnings(found)
    assert replaced.startswith("line 7, byte ") and replaced.endswith("bytes that are not UTF-8 were replaced")
    assert junk.startswith("line 8, byte ") and "not JSON" in junk  # S20.3


def test_half_a_surrogate_pair_is_replaced_and_named():
    found = list(read_lines(CASES / "S14-lone-surrogates" / "rollout.jsonl"))
    [warning] = warnings(found)
    assert warning.startswith("line 4, byte ") and "surrogate" in warning
    for text in texts(found):
        text.encode("utf-8", "strict")


@pytest.mark.parametrize(
    "junk",
    [
        b"\x00" * 64,
        b"null",
        b'"text"',
        b"[1,2]",
        b"{",
        b'{"type":"response_item","payload":',
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"n":' + b"9" * 5_000 + b"}",
        b"PK\x03\x04\x14",
        b"\xff\xfe{\x00}\x00",
    ],
    ids=lambda junk: repr(junk[:12]),
)
def test_junk_costs_its_own_line_only(tmp_path, junk):
    path = written(tmp_path, jsonl(META, said("before")) + junk + b"\n" + jsonl(said("after")))
    found = list(read_lines(path))
    assert texts(found) == ["before", "after"]
    assert [line.ordinal for line in found if isinstance(line.record, LineDamaged)] == [3]
    assert len(warnings(found)) == 1


def test_records_from_a_newer_version_are_kept_whole_without_a_warning():
    path = CASES / "S21-records-from-a-newer-version" / "rollout.jsonl"
    found = list(read_lines(path))
    assert len(found) == 11
    assert not warnings(found)
    kept = {line.record.type: line.record.payload for line in found if isinstance(line.record, LineKept)}
    raw = [json.loads(line) for line in path.read_bytes().splitlines()]
    for kind in ("token_usage_record", "security_risk_score"):
        assert kept[kind] == next(value["payload"] for value in raw if value["type"] == kind)


@pytest.mark.parametrize("payload", [None, 5, "text", [], [1], {}, {"type": 5}, {"type": None}, {"type": ["message"]}])
@pytest.mark.parametrize(
    "kind", ["session_meta", "response_item", "event_msg", "compacted", "world_state", "refold", 7]
)
def test_known_record_in_an_unknown_shape_does_not_stop_the_reading(tmp_path, kind, payload):
    path = written(tmp_path, jsonl(META, {"type": kind, "payload": payload}, said("after")))
    found = list(read_lines(path))
    assert texts(found)[-1] == "after"
    assert len(found) == 3


# --- compressed -----------------------------------------------------------------------------------------------------


def test_compressed_file_reads_like_the_plain_one():
    folder = CASES / "S22-compressed-rollouts"
    plain = next(folder.rglob("*0003fe.jsonl"))
    packed = next(folder.rglob("*0003fe.jsonl.zst"))
    assert list(read_lines(packed)) == list(read_lines(plain))
    assert len(texts(list(read_lines(packed)))) == 2  # S22.2


def test_content_decides_what_is_compressed_not_the_name(tmp_path):
    packed = written(tmp_path, zstd.compress(jsonl(META, said("x"))))  # named .jsonl (S22.4)
    plain = tmp_path / "plain.jsonl.zst"
    plain.write_bytes(jsonl(META, said("x")))
    assert is_zstd(packed) and not is_zstd(plain)
    assert list(read_lines(packed)) == list(read_lines(plain))


def test_several_frames_are_one_file(tmp_path):
    path = written(tmp_path, zstd.compress(jsonl(META)) + zstd.compress(jsonl(said("x"))))
    assert texts(list(read_lines(path))) == ["x"]


def noise(count: int) -> list[dict[str, Any]]:
    """Lines that compress badly, so that a cut file still holds whole blocks."""
    random.seed(1)
    return [said(random.randbytes(3_000).hex()) for _ in range(count)]


def test_cut_compressed_file_gives_what_it_holds_then_an_error(tmp_path):
    packed = zstd.compress(jsonl(META, *noise(200)))
    path = written(tmp_path, packed[: len(packed) * 3 // 4])
    read: list[Line] = []
    with pytest.raises(RolloutCorrupt, match="ends in its middle, after line") as broken:
        for line in read_lines(path):
            read.append(line)
    assert len(texts(read)) > 50
    assert str(broken.value).endswith(f"after line {len(read)}")


def test_cut_compressed_file_of_the_case_is_an_error_that_names_it():
    path = next((CASES / "S22-compressed-rollouts").rglob("*0007e6.jsonl.zst"))
    with pytest.raises(RolloutCorrupt, match=path.name):
        list(read_lines(path))


def test_broken_compressed_data_is_an_error_that_names_the_file(tmp_path):
    path = written(tmp_path, b"\x28\xb5\x2f\xfd" + b"not zstd at all")
    with pytest.raises(RolloutCorrupt, match=r"rollout\.jsonl: broken zstd data"):
        list(read_lines(path))


# --- what cannot be read ----------------------------------------------------------------------------------------------


def test_missing_file_is_not_found(tmp_path):
    with pytest.raises(RolloutNotFound, match="no such file"):
        list(read_lines(tmp_path / "none.jsonl"))


def test_folder_and_pipe_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (tmp_path, tmp_path / "pipe.jsonl"):
        with pytest.raises(RolloutError, match="not a regular file"):
            list(read_lines(path))


def test_reading_changes_nothing(tmp_path):
    for source in (CASES / "S18-partial-line").glob("*.jsonl"):
        path = Path(shutil.copy(source, tmp_path))
        os.utime(path, ns=(1_700_000_000_123_456_789,) * 2)
        list(read_lines(path))
        assert path.read_bytes() == source.read_bytes()
        assert path.stat().st_mtime_ns == 1_700_000_000_123_456_789  # S18.4


# --- a part of a file -----------------------------------------------------------------------------------------------


def test_head_ends_before_the_line_that_goes_beyond_it(tmp_path):
    first = jsonl(META)
    path = written(tmp_path, first + jsonl(said("a")) + jsonl(said("b" * 5_000)) + jsonl(said("c")))
    assert texts(list(read_lines(path, head=1_000))) == ["a"]
    assert texts(list(read_lines(path, head=len(first)))) == []
    assert len(texts(list(read_lines(path, head=1_000_000)))) == 3


def test_first_line_is_read_however_long_it_is(tmp_path):
    path = written(tmp_path, jsonl({**META, "extra": "x" * 10_000}, said("a")))
    found = list(read_lines(path, head=100))
    assert len(found) == 1 and not warnings(found)


def test_line_is_found_by_ordinal_or_number(tmp_path):
    numbered = written(tmp_path, jsonl({**META, "ordinal": 0}, said("one", ordinal=1), said("two", ordinal=2)))
    assert json.loads(find_line(numbered, 1) or "") == said("one", ordinal=1)
    assert find_line(numbered, 3) is None
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(b"\xef\xbb\xbf" + jsonl(META, said("one")).replace(b"\n", b"\r\n"))
    assert json.loads(find_line(plain, 1) or "") == META
    assert json.loads(find_line(plain, 2) or "") == said("one")


def test_damaged_line_does_not_hide_the_record_with_its_number(tmp_path):
    path = written(
        tmp_path, jsonl({**META, "ordinal": 0}) + b"junk\n" + jsonl(said("x", ordinal=1), said("y", ordinal=2))
    )
    assert json.loads(find_line(path, 2) or "") == said("y", ordinal=2)
    torn = written(tmp_path, jsonl({**META, "ordinal": 0}) + b"jun\xff")
    assert find_line(torn, 2) == "jun\ufffd"
