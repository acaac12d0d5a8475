"""S05: a second compaction keeps what people typed and one summary; context is re-injected, never copied."""

from __future__ import annotations

from pathlib import Path

from refold.core.compaction.replacement import Replacement, retained_user_messages, summarised
from refold.core.fragments import SUMMARY_MARK
from refold.core.history import Entry, entry
from refold.core.items import message_text, message_texts
from refold.core.jsonio import load
from refold.core.profile import Profile
from refold.core.prompt import prompt_from
from refold.core.templates import template
from refold.core.world import environment_state, make_world, messages, render

CASE = Path(__file__).parent.parent / "data" / "cases" / "S05-second-compaction-keeps-one-summary"
SECOND = "Second summary: parser ported, 3 tests fail."
TYPED = ["Port the parser to Python.", "Also keep the old error codes."]
WORLD = make_world(
    permissions="sandbox: workspace-write",
    environment=environment_state(
        cwd="/srv/demo", shell="bash", date="2026-02-03", timezone="Etc/UTC", sandbox_mode="workspace-write"
    ),
    agents_md={"directory": "/srv/demo", "text": "Use tabs."},
)


def history() -> list[Entry]:
    text = (CASE / "history.jsonl").read_text(encoding="utf-8").replace("{SUMMARY_PREFIX}", template("summary_prefix"))
    return [entry(load(line.encode())[0], f"T:{number}") for number, line in enumerate(text.splitlines(), 1)]


def compacted(before: list[Entry], summary: str = SECOND) -> Replacement:
    context = messages(render(WORLD, None), ["msg_c1", "msg_c2"], "t")
    return summarised(before, context, summary, summary_id="msg_sum", turn_id="t")


def test_only_what_people_typed_is_collected() -> None:
    assert [message_text(item) for item, _ in retained_user_messages(history())] == TYPED


def test_there_is_one_summary_and_it_is_last() -> None:
    items = compacted(history()).items
    summaries = [item for item in items if message_text(item).startswith(template("summary_prefix"))]
    assert summaries == [items[-1]]
    assert (items[-1]["role"], message_text(items[-1])) == ("user", SUMMARY_MARK + SECOND)
    assert not any("First summary" in message_text(item) for item in items)


def test_context_stands_once_in_the_next_prompt_because_it_was_injected_anew() -> None:
    replacement = compacted(history())
    after = [entry(item, "T:13") for item in replacement.items]
    prompt = prompt_from(after, Profile(slug="m"), base_instructions=None)
    texts = [text for item in prompt.input for text in message_texts(item)]
    for start in ("# AGENTS.md instructions", "<environment_context>", "<permissions instructions>"):
        assert sum(text.startswith(start) for text in texts) == 1, start
    new = [item["id"] for item, address in zip(replacement.items, replacement.addresses, strict=True) if not address]
    assert new == ["msg_c1", "msg_c2", "msg_sum"]


def test_nothing_of_the_models_work_remains() -> None:
    items = compacted(history()).items
    assert {item["type"] for item in items} == {"message"}
    assert "assistant" not in {item["role"] for item in items}


def test_a_third_compaction_keeps_the_same_messages() -> None:
    second = [entry(item, "T:13") for item in compacted(history()).items]
    third = compacted(second, "Third summary.")
    assert [message_text(item) for item, _ in retained_user_messages(second)] == TYPED
    assert [message_text(item) for item in third.items][-1] == SUMMARY_MARK + "Third summary."
    assert len(third.items) == len(second)
