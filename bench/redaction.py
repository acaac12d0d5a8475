"""Redaction: what looking for secrets costs an append, beside the same append without it.

`python -m bench.redaction` prints the table. An append is a record encoded, written to its file and folded.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.core import TABLE, Figure
from refold.core.config import Config
from refold.core.items import Item, message
from refold.core.profile import Profile
from refold.core.records import ItemRecorded
from refold.core.redaction_settings import Pattern, RedactionSettings
from refold.session.memory import Memory

ROUNDS = 7
APPENDS = 2_000
MICROSECONDS = 1_000_000
LINE = 'src/refold/core/records.py:42: "a line that a command printed", with some more words of it\n'
SECRET = "the key is sk-proj-a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6 and no other\n"
PROFILE = Profile(slug="bench", context_window=1_000_000_000)
DETECTORS = RedactionSettings(detectors=("secrets",))
ALL = RedactionSettings(
    detectors=("secrets", "email"),
    environment=True,
    patterns=(r"\bACME-\d{6}\b", Pattern(pattern=r"ticket (?P<secret>\d+)", name="ticket")),
)


def rows() -> Iterator[object]:
    kinds = (
        ("a message of 200 bytes", message("user", [LINE * 2])),
        ("an output of 10 kB", _output(LINE * 107)),
        ("an output of 10 kB with a secret", _output(LINE * 106 + SECRET)),
    )
    for what, item in kinds:
        for name, settings in (("detectors", DETECTORS), ("detectors, e-mail, environment, 2 patterns", ALL)):
            without, on = _quickest(item, RedactionSettings(), settings)
            yield Figure(f"append, {name}: {what}", "µs", on, "without redaction", without)


def _output(text: str) -> Item:
    return {"type": "function_call_output", "call_id": "call_1", "id": "fco_1", "output": text}


def _quickest(item: Item, *settings: RedactionSettings) -> list[float]:
    """Microseconds of an append under each of the settings, in the quickest of the rounds, in which they take turns."""
    found = [float("inf")] * len(settings)
    for _ in range(ROUNDS):
        for place, one in enumerate(settings):
            found[place] = min(found[place], _appended(item, one))
    return found


def _appended(item: Item, settings: RedactionSettings) -> float:
    with (
        tempfile.TemporaryDirectory() as folder,
        Memory.open(Path(folder), model=PROFILE, config=Config(redaction=settings)) as memory,
    ):
        memory.record(ItemRecorded(item))  # the file is there
        began = time.perf_counter()
        for _ in range(APPENDS):
            memory.record(ItemRecorded(item))
        return (time.perf_counter() - began) / APPENDS * MICROSECONDS


if __name__ == "__main__":
    print(TABLE)
    for row in rows():
        print(row, flush=True)
