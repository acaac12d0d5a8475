"""S10: images stay in the log; a compaction leaves a short text in their place, so checkpoints stay small."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from refold.core.items import message_text, message_texts
from refold.core.profile import Profile
from refold.core.prompt import prompt_from
from refold.session.memory import Memory
from refold.testing import ScriptedModel

CASE = Path(__file__).parent.parent / "data" / "cases" / "S10-images-must-not-ride-along"
ITEMS = [json.loads(line) for line in (CASE / "history.jsonl").read_text().splitlines()]
PROFILE = Profile(slug="m")


def compacted_five_times(folder: Path) -> tuple[list[bytes], bytes, list[str]]:
    """The compacted lines, the whole file, and the texts of the user messages that are kept at the end."""
    memory = Memory.open(folder, model=PROFILE)

    async def play() -> None:
        memory.add(ITEMS)
        for number in range(5):
            if number:
                memory.add({"role": "user", "content": f"And number {number}."})
            ended = await memory.make_room(ScriptedModel([f"Summary {number}."]), force=True)
            assert ended is not None
            assert ended.installed

    asyncio.run(play())
    memory.close()
    assert memory.path is not None
    data = memory.path.read_bytes()
    kept = [message_text(e.item) for e in memory.thread.history if e.origin == "typed"]
    return [line for line in data.splitlines() if b'"type":"compacted"' in line], data, kept


def test_checkpoints_hold_no_image_and_say_where_one_was(tmp_path: Path) -> None:
    checkpoints, _, _ = compacted_five_times(tmp_path)
    assert len(checkpoints) == 5
    for line in checkpoints:
        assert b"data:image" not in line
        first = json.loads(line)["payload"]["replacement_history"][0]
        texts = message_texts(first)
        assert texts[0] == "Compare these two screens."
        assert texts[1:] == ["[image left out]"] * (len(ITEMS[0]["content"]) - 1)


def test_the_fifth_checkpoint_is_hardly_larger_than_the_first(tmp_path: Path) -> None:
    checkpoints, _, kept = compacted_five_times(tmp_path)
    added = sum(len(text) for text in kept[1:])
    assert len(kept) == 5
    # each kept message also has its envelope, id and address; the case allows 200 bytes for one
    assert len(checkpoints[4]) - len(checkpoints[0]) <= added + 5 * 200


def test_the_log_still_holds_the_images(tmp_path: Path) -> None:
    _, data, _ = compacted_five_times(tmp_path)
    images = [part["image_url"] for item in ITEMS for part in _parts(item) if part["type"] == "input_image"]
    assert len(images) == 3
    assert all(image.encode() in data for image in images)


def test_a_model_without_image_input_is_told_in_place(tmp_path: Path) -> None:
    blind = Profile(slug="m", input_modalities=("text",))
    with Memory.open(tmp_path, model=blind) as memory:
        memory.add(ITEMS)
        sent = prompt_from(memory.thread.history, blind, base_instructions=None).input
    assert "data:image" not in json.dumps(sent)
    for before, after in zip(ITEMS, sent, strict=True):
        for old, new in zip(_parts(before), _parts(after), strict=True):
            assert (new["type"] == "input_text") if old["type"] == "input_image" else (old == new)


def _parts(item: object) -> list[dict[str, str]]:
    assert isinstance(item, dict)
    body = item.get("content", item.get("output"))
    return body if isinstance(body, list) else []
