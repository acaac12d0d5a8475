"""S17: a picture costs what a picture costs, whatever the length of its base64 text."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from refold.core.items import Item
from refold.core.media import INLINE_IMAGE
from refold.core.tokens import measure

CASE = Path(__file__).parent.parent / "data" / "cases" / "S17-image-cost-not-base64-length"
SHORT, LONG, ODD_CASE, PDF, ADDRESS, OUTPUT = (
    json.loads(line) for line in (CASE / "items.jsonl").read_text(encoding="utf-8").splitlines()
)


@pytest.mark.parametrize("item", [SHORT, LONG, ODD_CASE])
def test_an_inline_image_costs_the_same_whatever_its_length(item: Item) -> None:
    assert measure(item) == measure(SHORT)
    assert 1_844 <= measure(item).tokens <= 1_900


def test_a_document_is_no_image() -> None:
    assert measure(PDF).tokens > 10_000


def test_an_address_is_counted_as_text() -> None:
    assert measure(ADDRESS).tokens < 60


def test_an_output_costs_its_text_and_its_image() -> None:
    assert 1_844 <= measure(OUTPUT).tokens <= 1_920


def test_each_image_more_costs_the_same() -> None:
    (part,) = LONG["content"]
    sizes = [measure({**LONG, "content": [part] * count}) for count in range(5)]
    steps = {(after.image - before.image, after.text - before.text) for before, after in pairwise(sizes)}
    assert len(steps) == 1


def test_a_picture_of_five_megabytes_is_not_looked_through() -> None:
    (part,) = SHORT["content"]
    large = {**part, "image_url": part["image_url"] + "A" * 5_000_000}
    one, hundred = measure({**SHORT, "content": [large]}), measure({**SHORT, "content": [large] * 100})
    assert one == measure(SHORT)
    assert (hundred.image, hundred.text) == (100 * one.image, 100 * one.text)
    assert INLINE_IMAGE.match(large["image_url"][:256]), "the head of the address is enough"
