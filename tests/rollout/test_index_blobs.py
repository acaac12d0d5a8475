"""The index and long texts that lie beside their files: listed and found as if they stood in the lines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import Config, RolloutSettings
from refold.core.profile import Profile
from refold.core.records import Compacted, Window
from refold.core.truncate import Budget
from refold.rollout import Catalogue
from refold.rollout.blobs import folder_of
from refold.rollout.catalogue import run_through
from refold.rollout.index.whole import Whole
from refold.session.clock import Clock
from refold.session.memory import Memory

PROFILE = Profile(slug="m", context_window=1_000_000, truncation=Budget("tokens", 10_000), known=True)
LONG = 4_000  # words, which are more than 16 KiB


def written(home: Path, *records: Any, blobs: bool = True) -> Path:
    """A session that somebody began with a long message, and in which a model and a tool said much, too."""
    config = Config(rollout=RolloutSettings(blobs=blobs))
    with Memory.new(home, PROFILE, config, Clock(), cwd="/w", instructions="BASE") as memory:
        memory.add({"role": "user", "content": "xyzzy " * LONG})
        memory.add({"role": "assistant", "content": [{"type": "output_text", "text": "plugh " * LONG}]})
        memory.add({"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c"})
        memory.add({"type": "function_call_output", "call_id": "c", "output": "frotz " * LONG})
        for record in records:
            memory.record(record)
        assert memory.path is not None
        return memory.path


def checkpoint(*texts: str) -> Compacted:
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]} for text in texts]
    return Compacted(message="blorb " * LONG, history=tuple(items), window=Window(1, "a", None, "a"))


def found(catalogue: Catalogue, word: str) -> list[str]:
    searched = run_through(catalogue.searching(word, limit=10))
    return [hit.kind for one in searched.found for hit in one.hits]


@pytest.mark.parametrize("indexed", [True, False])
def test_long_texts_beside_the_file_are_found(tmp_path: Path, indexed: bool) -> None:
    written(tmp_path, checkpoint("xyzzy " * LONG))
    catalogue = Catalogue(tmp_path, indexed=indexed)
    kinds = {word: found(catalogue, word) for word in ("xyzzy", "plugh", "frotz", "blorb")}
    assert kinds == {"xyzzy": ["user"], "plugh": ["assistant"], "frotz": ["output"], "blorb": ["summary"]}


def test_a_session_is_listed_by_its_long_first_words_and_its_folder_is_not_looked_into(tmp_path: Path) -> None:
    path = written(tmp_path / "a")
    plain = written(tmp_path / "b", blobs=False)
    folder_of(path).joinpath(plain.name).write_bytes(plain.read_bytes())
    [listed], [without] = (Catalogue(tmp_path / home, indexed=True).sessions() for home in "ab")
    assert listed.title.startswith("xyzzy xyzzy")
    assert (listed.first_text, listed.turns) == (without.first_text, without.turns)
    assert [one[1] for one in Catalogue(tmp_path / "a").paths()] == [path]


def test_a_fork_is_listed_by_the_long_first_words_in_its_checkpoint(tmp_path: Path) -> None:
    config = Config(rollout=RolloutSettings(blobs=True))
    with Memory.new(tmp_path, PROFILE, config, Clock(), cwd="/w", instructions=None) as memory:
        memory.record(checkpoint("xyzzy " * LONG))
    assert next(iter(Catalogue(tmp_path, indexed=True).sessions())).first_text.startswith("xyzzy xyzzy")


def test_a_blob_that_is_gone_stops_no_list(tmp_path: Path) -> None:
    shutil.rmtree(folder_of(written(tmp_path)))
    [listed] = Catalogue(tmp_path, indexed=True).sessions()
    assert "is missing here" in listed.first_text and listed.problem is None


def test_of_a_checkpoint_only_what_it_says_itself_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, checkpoint("frobozz " * LONG))
    raw = next(one for one in path.read_bytes().splitlines() if b'"compacted"' in one)
    payload = json.loads(Whole(path).line(raw))["payload"]
    assert payload["message"].startswith("blorb") and payload["replacement_history"] == []
    history = json.loads(Whole(path).line(raw, history=True))["payload"]["replacement_history"]
    assert history[0]["content"][0]["text"].startswith("frobozz")
    line = b'{"timestamp":"","type":"compacted","payload":{"$blob"\xff'
    assert Whole(path).line(line) == line
