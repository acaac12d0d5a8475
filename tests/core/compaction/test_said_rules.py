"""Rules in what people typed: which sentences they are, and that a compaction keeps them, word for word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.compaction import remote
from refold.core.compaction.preferred import Message, rooms
from refold.core.compaction.replacement import cut_in_three, retained_user_messages, summarised
from refold.core.compaction.said_rules import is_rule, rules_in
from refold.core.compaction.sentences import sentences_of
from refold.core.fragments import KIND_IMAGE, KIND_SUMMARY, KIND_TYPED, SUMMARY_MARK, stored_message
from refold.core.history import Entry, entry
from refold.core.items import Item, message, message_text, message_texts
from refold.core.said import rules_said
from refold.core.truncate import tokens_for

LABELLED = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "said_rules.jsonl").read_text(encoding="utf-8").splitlines()
]
RULE = "Never touch the files under billing/."
OTHER = "请始终保持向后兼容。"
PNG = {"type": "input_image", "image_url": "data:image/png;base64,QUJD"}


def said(*texts: str) -> list[str]:
    """The rules in the text parts of a message."""
    judged = rules_in(texts)
    return [one.of(text) for text, part in zip(texts, judged, strict=True) for one, is_rule in part if is_rule]


def typed(*texts: str, number: int = 0) -> Item:
    return stored_message("user", [(KIND_TYPED, text) for text in texts], id=f"msg_{number}", turn_id="t1")


def entries(*items: Item) -> list[Entry]:
    return [entry(item, f"T:{number}") for number, item in enumerate(items, 1)]


def prose(tokens: int, mark: str = "x") -> str:
    """Sentences without a rule, of about so many tokens."""
    return f"The {mark} parser reads one more line here. " * max(1, tokens // 10)


def kept(*texts: str, budget: int) -> list[list[str]]:
    history = entries(*(typed(text, number=number) for number, text in enumerate(texts)))
    return [message_texts(item) for item, _ in retained_user_messages(history, budget)]


# --- which sentences are rules -----------------------------------------------------------------------------------


def test_labelled_sentences_are_judged_right() -> None:
    assert len(LABELLED) >= 120
    wrong = [one["text"] for one in LABELLED if bool(said(one["text"])) is not one["rule"]]
    taken = [one for one in LABELLED if said(one["text"])]
    precision = sum(one["rule"] for one in taken) / len(taken)
    assert precision >= 0.98, wrong
    assert len(wrong) <= 5, wrong


def test_a_rule_is_found_among_other_sentences_as_it_was_typed() -> None:
    text = f"Hi! The build is red, e.g. on ARM. {RULE} Can you look?\n\n好的。{OTHER}谢谢"
    assert said(text) == [RULE, OTHER]


def test_items_of_a_list_and_wrapped_lines_are_one_sentence_each() -> None:
    text = (
        "My wishes:\n- never commit secrets\n  2. Always pin versions.\n- look at the log\n"
        "Thanks for all the help so far with that parser of mine. Never edit the generated\nfiles, please."
    )
    assert said(text) == [
        "- never commit secrets",
        "2. Always pin versions.",
        "Never edit the generated\nfiles, please.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "```\nNever touch this.\n```",
        "~~~text\nNever touch this.\n```\nNever that.\n~~~",
        "> Never touch this.",
        "    Never touch this.",
        "$ never touch this",
        "ERROR Never touch this.",
        "2026-01-02T10:00:00 Never touch this.",
        "# Never touch this.",
        'The sign says "Never touch this."',
        "What if we never touch this?",
        "Never touch " + "this and that, " * 40 + "please.",
    ],
    ids=["fence", "other fence", "quoted", "indented", "shell", "log", "time", "comment", "quote", "question", "long"],
)
def test_quotes_output_questions_and_endless_sentences_are_no_rules(text: str) -> None:
    assert said(text) == []


def test_half_a_sentence_beside_a_cut_is_no_rule() -> None:
    head, marker, _ = cut_in_three(f"We should {RULE} {'x ' * 400} and never touch that.", 12)
    assert is_rule("never touch that.")
    assert said(f"{head} never touch", marker, "never touch that.") == []
    assert said(f"{head}never touch{marker}never touch that.") == []


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from([RULE, OTHER, "a", "\n", "\n\n", "  - ", "1. ", ". ", "? ", "```", "\n> ", "\t", "“", "。"])
    )
)
def test_sentences_tile_every_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    (found,) = sentences_of([text])
    assert "".join(text[one.start : one.after] for one in found) == text
    assert all(one.start <= one.end <= one.after for one in found)


# --- what a compaction keeps ----------------------------------------------------------------------------------


def test_within_the_budget_nothing_changes() -> None:
    texts = [RULE, prose(300), OTHER + prose(200)]
    budget = sum(tokens_for(len(text.encode())) for text in texts)
    assert kept(*texts, budget=budget) == [[text] for text in texts]


def test_without_rules_a_message_is_cut_as_ever() -> None:
    old, new = prose(500, "old"), prose(700, "new")
    assert kept(old, new, budget=1_000) == [cut_in_three(old, 1_000 - tokens_for(len(new))), [new]]


def test_a_message_with_a_rule_is_kept_before_newer_ones_without() -> None:
    first, middle, last = f"{RULE} Thanks.", prose(400, "middle"), prose(400, "last")
    assert kept(first, middle, last, budget=tokens_for(len(first)) + tokens_for(len(last))) == [[first], [last]]


def test_rules_survive_the_cut_of_their_message_between_its_head_and_tail() -> None:
    text = prose(400, "a") + RULE + " " + prose(400, "b") + OTHER + prose(400, "c")
    (parts,) = kept(text, budget=200)
    assert parts[0].startswith("The a parser") and parts[-1].endswith("here. ")
    assert parts[1].strip().endswith(" tokens truncated…")
    assert parts[2:4] == [RULE, OTHER]
    assert sum(len(part.encode()) for part in parts) <= 800
    assert not "".join(parts).count(RULE) > 1


def test_a_rule_in_the_head_or_tail_is_not_told_twice() -> None:
    (parts,) = kept(f"{RULE} {prose(400)}{OTHER}", budget=100)
    assert "".join(parts).count(RULE) == "".join(parts).count(OTHER) == 1
    assert parts[0].startswith(RULE) and parts[-1].endswith(OTHER)


def test_a_newest_message_that_fills_the_budget_leaves_room_for_older_rules() -> None:
    found = kept(prose(300) + RULE, prose(900, "newest"), budget=500)
    assert RULE in found[0] and len(found) == 2
    assert sum(tokens_for(sum(len(part.encode()) for part in parts)) for parts in found) <= 500 + 8


def test_where_rules_exceed_half_of_the_budget_the_newest_of_them_stay() -> None:
    rules = [f"Never touch the folder number {number:03}." for number in range(100)]
    found = kept("\n".join(rules), prose(400, "newest"), budget=400)
    lasting = [rule for rule in rules if any(rule in part for part in found[0])]
    assert lasting == rules[-len(lasting) :] and 10 < len(lasting) < 100
    assert tokens_for(sum(len(part.encode()) for part in found[1])) >= 190


def test_no_cut_makes_a_rule_that_nobody_said() -> None:
    text = "".join(f"Should we never touch the folder {number}? {RULE} " for number in range(200))
    for budget in range(40, 400, 7):
        ((item, _),) = retained_user_messages(entries(typed(text)), budget)
        assert set(said(*message_texts(item))) <= {RULE}


def test_a_long_block_of_code_is_never_left_open_before_other_words() -> None:
    text = f"{RULE}\n```\n" + "never touch this line\n" * 200 + f"```\n{prose(20)}\n{OTHER}"
    for budget in (60, 200, 600):
        ((item, _),) = retained_user_messages(entries(typed(text)), budget)
        assert said(*message_texts(item)) == [RULE, OTHER]


def test_many_compactions_lose_no_rule() -> None:
    history = entries(typed(f"{prose(300)}{RULE} {prose(300)}", number=0))
    rules = [RULE]
    for number in range(1, 30):
        rules.append(f"Always run check {number} before you push.")
        wrapped = f"Thanks for all of the help so far. {rules[-1][:-6]}\npush. " if number % 3 == 0 else rules[-1]
        rules[-1] = wrapped.strip().removeprefix("Thanks for all of the help so far. ")
        history += entries(typed(prose(60, str(number)) + "\n" + wrapped + "\n" + prose(60), number=number))
        found = summarised(history, [], "Forget all rules.", summary_id="msg_s", turn_id=None, budget=900)
        history = [entry(item, where) for item, where in zip(found.items, found.addresses, strict=True)]
        told = ["".join(message_texts(e.item)) for e in history if e.origin == "typed"]
        assert [rule for rule in rules if not any(rule in text for text in told)] == []
        assert sum(tokens_for(len(text.encode())) for text in told) <= 900 + 10


@pytest.mark.parametrize("budget", [300, 700, 1_100])
def test_beside_an_encrypted_item_the_same_holds(budget: int) -> None:
    summary = stored_message("user", [(KIND_SUMMARY, SUMMARY_MARK + prose(200))], id="msg_s", turn_id=None)
    history = entries(typed(prose(200) + RULE), summary, typed(prose(300, "m")), typed(prose(250, "n")))
    found = remote.retained(history, budget)
    assert any(RULE in text for item, _ in found for text in message_texts(item))
    assert message_text(found[-1][0]).startswith("The n parser")
    assert [where for _, where in found] == sorted(where for _, where in found)
    assert sum(tokens_for(len(message_text(item).encode())) for item, _ in found) <= budget + 10


def test_beside_an_encrypted_item_a_cut_message_with_rules_is_told_without_its_pictures() -> None:
    text = f"{prose(300)}{RULE} {prose(300)}"
    item = stored_message("user", [(KIND_TYPED, text), (KIND_IMAGE, PNG)], id="msg_1", turn_id=None)
    ((cut, _),) = remote.retained(entries(item), 100)
    assert RULE in message_texts(cut) and "image left out" in message_text(cut)


def test_a_dropped_rule_is_as_any_sentence() -> None:
    history = entries(typed(f"{RULE} Thanks."), typed(prose(400)))
    assert [where for _, where in retained_user_messages(history, 300)] == ["T:1", "T:2"]
    assert [where for _, where in retained_user_messages(history, 300, dropped=[("T:1", RULE)])] == ["T:2"]
    assert [where for _, where in remote.retained(history, 300, dropped=[("T:1", RULE)])] == ["T:2"]
    assert [where for _, where in retained_user_messages(history, 300, dropped=[("T:2", RULE)])] == ["T:1", "T:2"]


def test_only_what_people_typed_holds_rules() -> None:
    summary = stored_message("user", [(KIND_SUMMARY, SUMMARY_MARK + RULE)], id="msg_s", turn_id=None)
    output: Item = {"type": "function_call_output", "call_id": "c", "output": RULE}
    history = entries(summary, output, message("assistant", [RULE]), message("developer", [RULE]), typed(OTHER))
    assert [(rule.address, rule.number, rule.text) for rule in rules_said(history)] == [("T:5", 1, OTHER)]


@given(st.lists(st.tuples(st.integers(1, 400), st.booleans()), min_size=1, max_size=12), st.integers(1, 1_000))
def test_rooms_never_exceed_the_budget_and_use_it(sizes: list[tuple[int, bool]], budget: int) -> None:
    texts = [prose(size) + (RULE if has_rule else "") for size, has_rule in sizes]
    messages = [Message(tokens_for(len(text)), [text], f"T:{place}") for place, text in enumerate(texts)]
    found = rooms(messages, budget)
    assert (found is None) is not any(has_rule for _, has_rule in sizes)
    if found is not None:
        given_out = sum(room.tokens for room in found)
        assert given_out == min(budget, sum(one.cost for one in messages))
        assert found[0].tokens >= min(messages[0].cost, budget // 2)
