"""Windows: how much work opening a request is, what stays readable beside an item, and what is not compacted yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from refold.core.fragments import SUMMARY_MARK
from refold.core.history import entry
from refold.core.items import Item
from refold.server import gateway as gateway_module
from refold.server import windows
from refold.server.aside import LARGE
from refold.server.incoming import Given
from refold.server.seal import KeyRing
from refold.server.windows import Sealed, budget_for, fingerprint, opened, seal, unanswered
from refold.testing import ResponsesServer

Gateways = Callable[..., Any]
RING = KeyRing((bytes(range(32)),))


def user(text: str) -> Item:
    return {"type": "message", "role": "user", "content": text}


def assistant(text: str) -> Item:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def call(name: str) -> Item:
    return {"type": "function_call", "name": "read", "arguments": "{}", "call_id": name}


def output(name: str, text: str = "42 lines") -> Item:
    return {"type": "function_call_output", "call_id": name, "output": text}


def given(items: Sequence[Item]) -> list[Given]:
    return [Given.of(item) for item in items]


def compaction(text: str, *, count: int = 0, sha256: str = "", **fields: Any) -> Item:
    sealed = Sealed(text=text, method="model", model="m", at=0, count=count, sha256=sha256, **fields)
    return {"type": "compaction", "encrypted_content": seal(sealed, RING, "t")}


def words(items: Sequence[Item]) -> list[str]:
    """What items say: a text, or their type."""
    told: list[str] = []
    for item in items:
        content = item.get("content")
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())
        told.append(text.replace(SUMMARY_MARK, "summary: ") if item["type"] == "message" else item["type"])
    return told


def told_of(items: Sequence[Item], window: int | None = None) -> list[str]:
    return words([one.item for one in opened(given(items), RING, "t", window=window, keeps=False)])


# --- how much work it is ---------------------------------------------------------------------------------------------


class Counted:
    """A function that counts what it was called with. Mutable."""

    def __init__(self, work: Callable[..., Any], amount: Callable[..., int]) -> None:
        self.work, self.amount, self.count = work, amount, 0

    def __call__(self, *values: Any) -> Any:
        self.count += self.amount(*values)
        return self.work(*values)


def test_many_items_that_stand_for_all_before_them_are_a_pass_over_the_items(monkeypatch: pytest.MonkeyPatch) -> None:
    inline = compaction("S", is_inline=True)
    items = [one for number in range(200) for one in (user(str(number)), inline)]
    kept, measured = Counted(windows.kept_of, lambda *_: 1), Counted(windows.entry, lambda *_: 1)
    monkeypatch.setattr(windows, "kept_of", kept)
    monkeypatch.setattr(windows, "entry", measured)
    assert told_of(items) == [*map(str, range(200)), "summary: S"]
    assert kept.count == 1 and measured.count <= len(items)


def test_many_items_that_may_stand_for_those_before_them_are_a_pass_over_the_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items = [one for number in range(100) for one in (user("u"), compaction("S", count=2 * number + 1, sha256="no"))]
    fed = Counted(windows._feed, lambda _, items: len(items))
    monkeypatch.setattr(windows, "_feed", fed)
    assert told_of(items) == ["u", "summary: S"] * 100
    assert fed.count <= len(items)


def test_last_item_that_stands_for_the_others_counts() -> None:
    before = [user("a"), compaction("first", is_inline=True), assistant("b")]
    asked = compaction("second", count=3, sha256=fingerprint(given(before)))
    other = compaction("third", count=3, sha256="of other items")
    assert told_of([*before, asked, other, user("c")]) == ["a", "summary: second", "summary: third", "c"]
    assert told_of([user("new"), *before, asked]) == ["new", "a", "summary: first", "b", "summary: second"]


def test_large_body_is_read_in_a_thread_of_its_own(gateway: Gateways, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, int] = {}

    def seen(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def working(*values: Any, **options: Any) -> Any:
            threads[name] = threading.get_ident()
            return work(*values, **options)

        return working

    for name in ("read_request", "opened", "estimated"):
        monkeypatch.setattr(gateway_module, name, seen(name, getattr(gateway_module, name)))
    managed = {"context_management": [{"type": "compaction", "compact_threshold": 10**9}]}
    with ResponsesServer(["a", "b"]) as upstream:
        running = gateway(upstream)
        running.post("/responses", {"model": "m", "input": "hi", **managed})
        (loop,) = set(threads.values())
        answer = running.post("/responses", {"model": "m", "input": "x" * LARGE, **managed})
        assert answer.status_code == 200 and len(upstream.requests[1].body) > LARGE
        assert running.post("/responses", b'{"model": "m", "input": [' + b" " * LARGE).status_code == 400
    assert len(threads) == 3 and loop not in threads.values()


# --- what stays readable ---------------------------------------------------------------------------------------------


def inputs(count: int, tokens: int = 100) -> list[Item]:
    return [user(f"{number:03} ".ljust(tokens * 4, "u")) for number in range(count)]


def test_compaction_is_below_the_threshold_that_asked_for_it(gateway: Gateways) -> None:
    threshold = 1_000
    managed = {"context_management": [{"type": "compaction", "compact_threshold": threshold}]}
    compacted: list[bool] = []
    with ResponsesServer(lambda _: "A SUMMARY, OR AN ANSWER") as upstream:
        running, history = gateway(upstream), []
        for question in inputs(24):
            history.append(question)
            response = running.post("/responses", {"model": "m", "input": history, **managed}).json()
            compacted.append(response["output"][0]["type"] == "compaction")
            history += response["output"]
            sent = sum(entry(item, "").tokens for item in upstream.requests[-1].json["input"])
            assert sent <= threshold
    first = compacted.index(True)
    assert first > 3 and not any(one and after for one, after in pairwise(compacted))
    assert any(compacted[first + 1 :])  # and what is said later is compacted in its turn


def test_what_stays_beside_an_item_is_the_same_whatever_the_next_request_says(gateway: Gateways) -> None:
    history = [*inputs(10), assistant("done")]
    with ResponsesServer(["S", "one", "two", "three"]) as upstream:
        running = gateway(upstream)

        def ask(items: list[Item], threshold: int | None) -> list[Item]:
            asked = [] if threshold is None else [{"type": "compaction", "compact_threshold": threshold}]
            body = {"model": "m", "input": items, "context_management": asked}
            return running.post("/responses", body).json()["output"]

        item, _ = ask([*history, user("on")], 1_000)
        for threshold in (None, 900):
            assert [one["type"] for one in ask([*history, user("on"), item, user("more")], threshold)] == ["message"]
        first, *others = (request.json["input"] for request in upstream.requests[1:])
    assert [*words(first)[-2:]] == ["summary: S", "on"] and 5 <= len(first) < 8
    assert all(other == [*first, user("more")] for other in others)


def test_item_of_an_older_gateway_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"text": "S", "method": "model", "model": "m", "at": 1, "count": 9, "sha256": "x", "is_inline": True}
    item = {"type": "compaction", "encrypted_content": RING.seal(msgspec.json.encode(old), "t")}
    assert told_of([user("a"), call("c"), output("c"), item, user("b")]) == ["a", "summary: S", "b"]


def test_budget_is_half_of_what_is_smaller() -> None:
    assert budget_for(None) == 64_000
    assert budget_for(10_000) == 5_000 == budget_for(None, 10_000)
    assert budget_for(10_000, 2_000) == 1_000 and budget_for(10_000, 100_000) == 5_000


# --- what the model has not seen -------------------------------------------------------------------------------------

THOUGHT = {"type": "reasoning", "summary": [], "encrypted_content": "x"}


@pytest.mark.parametrize(
    ("items", "count"),
    [
        ([], 0),
        ([user("a")], 1),
        ([assistant("a")], 0),
        ([user("a"), assistant("b"), user("c"), user("d")], 2),
        ([user("a"), call("1"), output("1")], 2),
        ([call("1"), output("1")], 2),
        ([user("a"), assistant("b"), call("1"), call("2"), output("1"), output("2")], 4),
        ([user("a"), call("1"), call("2"), output("2"), assistant("b"), output("1")], 5),
        ([user("a"), call("1"), call("2"), output("1"), assistant("b"), output("2")], 5),
        ([user("a"), call("1"), output("1"), call("2"), output("2")], 2),
        ([user("a"), THOUGHT, call("1"), output("1")], 3),
        ([user("a"), call("1"), output("1"), user("stop")], 3),
        ([user("a"), call("1"), user("stop"), output("1")], 3),
        ([user("a"), call("1"), output("1"), assistant("b"), user("c")], 1),
        ([user("a"), call("1"), output("1", "y" * 9_000), user("c")], 1),
        ([user("a"), call("1"), output("1", "y" * 9_000)], 0),
        ([user("a"), output("nobody"), user("c")], 1),
        ([user("a"), call("1"), {"type": "compaction"}, output("1")], 0),
        ([user("a"), {**call("1"), "call_id": ["x"]}, {**output("1"), "call_id": ["x"]}], 2),
    ],
)
def test_what_is_answered_and_not_compacted(items: list[Item], count: int) -> None:
    assert unanswered(given(items), 2_000) == count


MANAGED = {"context_management": [{"type": "compaction", "compact_threshold": 1_500}]}
PAST = [user("Read it."), assistant("y" * 8_000)]


@pytest.mark.parametrize("sends_all", [True, False])
def test_output_that_the_model_has_not_seen_is_told_it_until_the_next_compaction(
    gateway: Gateways, *, sends_all: bool
) -> None:
    step = [call("1"), output("1")]
    with ResponsesServer(["S", "ANSWER", "next"]) as upstream:
        running = gateway(upstream)
        response = running.post("/responses", {"model": "m", "input": [*PAST, *step], **MANAGED}).json()
        assert [one["type"] for one in response["output"]] == ["compaction", "message"]
        if sends_all:
            body = {"input": [*PAST, *step, *response["output"], user("on")]}
        else:
            body = {"previous_response_id": response["id"], "input": [user("on")]}
        running.post("/responses", {"model": "m", **body, **MANAGED})
        asked, answered, after = (request.json["input"] for request in upstream.requests)
    assert "function_call" not in words(asked)
    assert words(answered) == ["Read it.", "summary: S", "function_call", "function_call_output"]
    assert words(after) == [*words(answered), "ANSWER", "on"]


def test_nothing_is_compacted_where_only_the_last_outputs_could_be(gateway: Gateways) -> None:
    with ResponsesServer(["ANSWER"]) as upstream:
        question = user("y" * 6_000)
        response = gateway(upstream).post(
            "/responses", {"model": "m", "input": [question, call("1"), output("1")], **MANAGED}
        )
        assert [one["type"] for one in response.json()["output"]] == ["message"]
        assert words(upstream.requests[0].json["input"])[1:] == ["function_call", "function_call_output"]


def test_tail_that_a_client_changed_is_part_of_what_an_item_stands_for() -> None:
    tail = given([call("1"), output("1")])
    item = compaction("S", is_inline=True, tail=2, tail_sha256=fingerprint(tail))
    assert told_of([user("a"), call("1"), output("1"), item]) == [
        "a",
        "summary: S",
        "function_call",
        "function_call_output",
    ]
    assert told_of([user("a"), call("1"), output("1", "other"), item]) == ["a", "summary: S"]
    assert told_of([output("1"), item]) == ["summary: S"]
