"""The guess: never less for more text, near exact counts, and the same walk through an item as the protocol's rule."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refold.core.guess import EVERY, SHAPES, WEIGHTS, WHOLE, WINDOW, Guess, guess_item, guess_items, guess_text
from refold.core.items import Item
from refold.core.media import IMAGE_BYTES
from refold.core.tokens import measure, utf8_len
from refold.core.truncate import tokens_for

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=())) | st.text(
    "aA0 .-=\n\té中かя한\U0001f600\ud800", max_size=200
)
DIGESTS = [hashlib.sha256(bytes([number])).digest() for number in range(20)]

ENGLISH = """\
The ferry leaves the harbour at seven, and by then the baker has already sold most of his bread to people who
will not be back before evening. Nobody is in a hurry. A child counts the gulls on the railing, loses track, and starts
again from one; her grandfather pretends not to notice that she skips the ones she finds ugly. When the horn sounds, the
whole deck trembles for a moment, and the town begins to slide away behind them as if it were the thing that moved."""

CODE = '''def merge(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """The union of two sorted lists; intervals that touch become one."""
    merged: list[Interval] = []
    for interval in heapq.merge(left, right, key=lambda interval: interval.start):
        if merged and interval.start <= merged[-1].end:
            merged[-1] = Interval(merged[-1].start, max(merged[-1].end, interval.end))
        else:
            merged.append(interval)
    if len(merged) > self.limit:
        raise ValueError(f"too many intervals: {len(merged)} > {self.limit}")
    return merged
'''

SCRIPT = """export async function fetchInvoice(client, invoiceId, { retries = 3, signal } = {}) {
  const response = await client.get(`/api/v2/invoices/${invoiceId}`, { signal });
  if (response.status === 429 && retries > 0) {
    await sleep(Number(response.headers['retry-after'] ?? 1) * 1000);
    return fetchInvoice(client, invoiceId, { retries: retries - 1, signal });
  }
  return response.data.items.map((item) => ({ ...item, total: item.quantity * item.unitPrice }));
}
"""

CHINESE = """\
老街拐角的修表铺只有一张桌子宽。师傅戴着放大镜，用镊子夹起比米粒还小的螺丝，屏住呼吸放回原处。他说年轻人现在看手机，
不大戴表了，来的多半是替父母修旧物的人。有位姑娘捧来一块停了十几年的怀表，表盖里刻着祖父的名字。师傅拆开看了半天，只
换了一根发条，没有收钱。表重新走起来的时候，姑娘愣了一会儿，忽然掉下泪来。窗外的雨还在下，屋里几十只钟各走各的，滴滴
答答，像许多人在低声说话。"""

JAPANESE = """\
朝の電車は思ったより空いていた。窓際の席に座り、鞄から読みかけの本を出したが、結局一頁も進まないまま海が見えてきた。
向かいの席では小学生の兄弟が、次の駅で降りるかどうかを真剣に相談している。"""

COMPACT = (
    '{"id":"ord_58213","status":"shipped","customer":{"id":90412,"name":"R. Alvarez","tags":["wholesale","eu"]},'
    '"lines":[{"sku":"LMP-0042","qty":12,"price":18.5,"tax":0.19},{"sku":"CBL-1107","qty":3,"price":4.25,"tax":0.19}],'
    '"shipping":{"carrier":"dhl","tracking":"00340434161094042557","eta":"2026-03-14T09:30:00Z","insured":false},'
    '"totals":{"net":234.75,"tax":44.6,"gross":279.35},"notes":null,"history":[{"at":1773132000,"event":"paid"},'
    '{"at":1773218400,"event":"packed"},{"at":1773304800,"event":"shipped"}]}'
)

INDENTED = """{
  "name": "harbour-map",
  "version": "4.11.2",
  "private": true,
  "scripts": {
    "build": "vite build --mode production",
    "lint": "eslint src --max-warnings 0",
    "test": "vitest run --coverage"
  },
  "dependencies": {
    "@turf/bbox": "^7.1.0",
    "maplibre-gl": "^4.7.1",
    "proj4": "~2.12.1"
  },
  "engines": {
    "node": ">=20.11"
  }
}
"""

ACCESS = """\
203.0.113.40 - - [11/Mar/2026:06:25:01 +0000] "GET /tiles/12/2187/1342.png HTTP/1.1" 200 18734 "-" "curl/8.5.0"
198.51.100.7 - - [11/Mar/2026:06:25:01 +0000] "POST /api/v2/positions HTTP/1.1" 201 112 "-" "okhttp/4.12.0"
203.0.113.40 - - [11/Mar/2026:06:25:02 +0000] "GET /tiles/12/2188/1342.png HTTP/1.1" 304 0 "-" "curl/8.5.0"
192.0.2.119 - - [11/Mar/2026:06:25:04 +0000] "GET /health HTTP/1.1" 200 2 "-" "kube-probe/1.29"
"""

SERVICE = """2026-03-11T06:25:01.482Z INFO  [ingest.worker-3] batch 48213 accepted: 512 positions in 38 ms (queue=17)
2026-03-11T06:25:01.977Z WARN  [ingest.worker-1] vessel 211378120: position jumps 4213 m in 2 s, dropped
2026-03-11T06:25:02.003Z ERROR [store.writer] commit failed, attempt 1/5: deadlock detected (SQLSTATE 40P01)
2026-03-11T06:25:02.250Z INFO  [store.writer] commit ok after 247 ms, txid=90127734, request_id=7f3c9a1e-52d0-4b8e
"""

PYTEST = """============================= test session starts ==============================
collected 214 items / 3 deselected / 211 selected

tests/geo/test_bbox.py::test_crosses_the_antimeridian PASSED             [  0%]
tests/geo/test_bbox.py::test_empty_box_has_no_area PASSED                [  0%]
tests/store/test_writer.py::test_retries_after_deadlock[3] FAILED        [  1%]

=================================== FAILURES ===================================
    def test_retries_after_deadlock(writer, attempts):
>       assert writer.commit() == attempts
E       AssertionError: assert 2 == 3

tests/store/test_writer.py:48: AssertionError
=================== 1 failed, 210 passed, 3 deselected in 9.41s =================
"""

PIP = """Collecting rasterio>=1.4
  Downloading rasterio-1.4.3-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl (22.2 MB)
     ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 22.2/22.2 MB 41.3 MB/s eta 0:00:00
Requirement already satisfied: attrs in ./.venv/lib/python3.11/site-packages (from rasterio>=1.4) (25.1.0)
Installing collected packages: affine, snuggs, click-plugins, rasterio
Successfully installed affine-2.4.0 click-plugins-1.1.1 rasterio-1.4.3 snuggs-1.4.7
"""

BASE64 = base64.b64encode(b"".join(DIGESTS)).decode()
HEX = "\n".join(f"{digest.hex()}  part-{number:03}.bin" for number, digest in enumerate(DIGESTS))

# Each text with its exact o200k tokens.
EXACT = {
    "English": (ENGLISH, 106),
    "Python": (CODE, 141),
    "JavaScript": (SCRIPT, 120),
    "Japanese": (JAPANESE, 84),
}
EXACT_WHERE_BYTES_MISLEAD = {
    "Chinese": (CHINESE, 172),
    "compact JSON": (COMPACT, 186),
    "indented JSON": (INDENTED, 136),
    "access log": (ACCESS, 225),
    "service log": (SERVICE, 181),
    "pytest": (PYTEST, 163),
    "pip": (PIP, 171),
    "base64": (BASE64, 583),
    "hex": (HEX, 848),
}


# --- a text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "exact"), [*(EXACT | EXACT_WHERE_BYTES_MISLEAD).values()], ids=[*EXACT, *EXACT_WHERE_BYTES_MISLEAD]
)
def test_a_guess_is_near_the_exact_count(text: str, exact: int) -> None:
    assert guess_text(text) == pytest.approx(exact, rel=0.25)


@pytest.mark.parametrize(("text", "exact"), EXACT_WHERE_BYTES_MISLEAD.values(), ids=EXACT_WHERE_BYTES_MISLEAD)
def test_a_guess_is_nearer_than_bytes_by_four(text: str, exact: int) -> None:
    assert abs(guess_text(text) - exact) < abs(tokens_for(utf8_len(text)) - exact)


@given(ANY_TEXT, ANY_TEXT)
@example("\ud83d", "\ude00")
@example("=====", "a1B2" * 9)
def test_appending_never_lowers_a_guess(text: str, more: str) -> None:
    assert 0 <= guess_text(text) <= guess_text(text + more)


@given(st.integers(0, 3 * WINDOW * EVERY), st.integers(0, 3 * WINDOW * EVERY))
def test_appending_to_a_long_text_never_lowers_a_guess(length: int, more: int) -> None:
    text = (PYTEST + CHINESE + BASE64) * (WHOLE // 1_000)
    assert guess_text(text[: WHOLE // 2 + length]) <= guess_text(text[: WHOLE // 2 + length + more])


@given(ANY_TEXT)
def test_only_an_empty_text_is_nothing(text: str) -> None:
    assert (guess_text(text) == 0) == (not text)


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=40), max_size=30), st.integers(0, 30))
def test_items_that_are_guessed_at_once_are_as_much_as_one_by_one(texts: list[str], cut: int) -> None:
    items: list[Item] = [{"type": "message", "role": "user", "content": text} for text in texts]
    one_by_one = sum((guess_items([item]) for item in items), Guess())
    assert guess_items(items) == one_by_one == guess_items(items[:cut]) + guess_items(items[cut:])


def test_long_and_short_items_are_guessed_at_once_as_one_by_one() -> None:
    items: list[Item] = [
        {"type": "message", "role": "user", "content": "word, " * times} for times in (1, 30_000, 2, 400_000, 3, 10_000)
    ]
    assert guess_items(items) == sum((guess_items([item]) for item in items), Guess())


def test_a_long_text_is_guessed_by_its_windows() -> None:
    text = ENGLISH + CODE + ACCESS + COMPACT
    times = 20 * WHOLE // len(text)
    assert guess_text(text * times) == pytest.approx(guess_text(text) * times, rel=0.05)


def test_half_a_surrogate_pair_is_a_character() -> None:
    assert guess_text("\ud800") == 1


def test_weights_are_of_shapes_and_never_negative() -> None:
    assert all(weight >= 0 for weight in WEIGHTS.values())
    assert {shape for pattern in WEIGHTS for shape in pattern} <= set(SHAPES)


# --- an item ------------------------------------------------------------------------------------------------


@given(st.binary(max_size=3_000))
def test_an_image_costs_the_same_whatever_its_base64(data: bytes) -> None:
    def image(raw: bytes) -> Item:
        url = f"data:image/png;base64,{base64.b64encode(raw).decode()}"
        return {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}

    assert guess_item(image(data)) == guess_item(image(b""))
    assert guess_item(image(data)) - tokens_for(IMAGE_BYTES) < 15


@pytest.mark.parametrize(
    ("item", "texts"),
    [
        ({"type": "message", "content": SERVICE}, [SERVICE]),
        (
            {"type": "message", "content": [{"text": SERVICE}, {"type": "refusal", "refusal": CODE}, 1]},
            [SERVICE, "refusal", CODE],
        ),
        (
            {"type": "function_call", "name": "shell", "namespace": "n", "arguments": COMPACT, "call_id": "c"},
            ["shell", "n", COMPACT],
        ),
        ({"type": "custom_tool_call", "name": "patch", "input": CODE}, ["patch", CODE]),
        ({"type": "function_call", "name": "shell", "arguments": {"cmd": "ls"}}, ["shell", '{"cmd":"ls"}']),
        ({"type": "function_call_output", "call_id": "call_1", "output": PYTEST}, ["call_1", PYTEST]),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": [{"text": PIP}]}, ["c", PIP]),
        ({"type": "image_generation_call", "revised_prompt": ENGLISH}, [ENGLISH]),
        (
            {"type": "message", "content": [{"type": "input_image", "image_url": "https://example.org/a.png"}]},
            ["https://example.org/a.png"],
        ),
        ({"type": "web_search_call", "status": "completed"}, ['{"type":"web_search_call","status":"completed"}']),
        ({"type": "message", "content": None}, []),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_an_item_is_guessed_by_its_texts(item: Item, texts: list[str]) -> None:
    assert guess_item(item) == pytest.approx(sum(map(guess_text, texts)), abs=len(texts))


@pytest.mark.parametrize(
    "item",
    [
        {"type": "reasoning", "encrypted_content": BASE64, "summary": [{"text": "not counted"}]},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "message", "content": [{"type": "encrypted_content", "encrypted_content": BASE64}]},
        {"type": "message", "content": [{"type": "input_audio", "input_audio": {"data": BASE64 * 900}}]},
        {"type": "image_generation_call", "result": BASE64},
        {"type": "reasoning", "encrypted_content": None},
    ],
)
def test_what_is_no_text_costs_what_the_protocol_says(item: Item) -> None:
    assert guess_item(item) == measure(item).tokens


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)
TYPES = [
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call_output",
    "reasoning",
    "image_generation_call",
    "other",
]
KEYS = [
    "content",
    "output",
    "arguments",
    "input",
    "name",
    "call_id",
    "encrypted_content",
    "result",
    "text",
    "image_url",
]


@given(st.sampled_from(TYPES), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4))
def test_any_item_has_a_guess(type: str, rest: dict[str, Any]) -> None:
    assert guess_item({"type": type, **rest}) >= 0
