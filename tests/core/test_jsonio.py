"""JSON text is read whatever is wrong with its characters, and written as strict UTF-8."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.jsonio import dump, load, without_lone_surrogates

ANY_TEXT = st.text(st.characters())  # halves of surrogate pairs too


def test_text_is_compact_and_keeps_the_order_of_keys() -> None:
    assert dump({"z": 1, "a": [True, None, "é"]}) == '{"z":1,"a":[true,null,"é"]}'.encode()


def test_half_a_surrogate_pair_is_read_as_the_replacement_character_with_a_warning() -> None:
    assert load(rb'{"a":"x \ud83d y \ude00 z \ud83d\ude80"}') == (
        {"a": "x \ufffd y \ufffd z \U0001f680"},
        "half surrogate pairs were replaced",
    )


def test_bad_bytes_are_replaced_with_a_warning_also_beside_a_true_replacement_character() -> None:
    assert load(b'{"a":"\xff","b":"\xef\xbf\xbd"}') == (
        {"a": "\ufffd", "b": "\ufffd"},
        "bytes that are not UTF-8 were replaced",
    )


def test_a_true_replacement_character_is_no_reason_to_warn() -> None:
    assert load(b'{"b":"\xef\xbf\xbd"}') == ({"b": "\ufffd"}, None)


def test_a_raw_control_character_in_a_text_is_read() -> None:
    assert load(b'"a\x01b"')[0] == "a\x01b"


def test_a_number_of_any_size_is_kept() -> None:
    number = 10**40 + 1
    assert load(dump({"n": number})) == ({"n": number}, None)


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a":1', b'{"a":1}{"b":2}', b"\x00\x01", b"\xef\xbb\xbf{}"])
def test_what_is_no_json_is_a_value_error_that_says_where(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r" at character \d+$") as raised:
        load(raw)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("middle", [b"", rb'"\ud83d"'])
def test_text_that_is_nested_too_deeply_is_a_value_error(middle: bytes) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        load(b"[" * 50_000 + middle + b"]" * 50_000)


def test_halves_side_by_side_are_one_character() -> None:
    assert without_lone_surrogates("a\ud83d\ude80b") == "a\U0001f680b"


def test_a_value_without_halves_is_shared() -> None:
    value = {"a": ["é", {"b": "\U0001f680"}], "c": None}
    assert without_lone_surrogates(value) is value


def test_what_holds_no_half_is_shared_inside_a_value_that_does() -> None:
    value = {"good": ["é"], "bad": ["\ud83d"], "\ude00": 1}
    clean = without_lone_surrogates(value)
    assert clean == {"good": ["é"], "bad": ["\ufffd"], "\ufffd": 1}
    assert clean["good"] is value["good"]


@settings(deadline=None)
@given(ANY_TEXT)
def test_any_text_is_written_as_strict_utf8_and_read_back_as_its_well_formed_self(text: str) -> None:
    raw = dump({"text": text})
    assert load(raw) == ({"text": without_lone_surrogates(text)}, None)
    assert raw.decode("utf-8", "strict")
