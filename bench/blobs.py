"""Blobs: what a session of pictures that compactions keep takes on disk, to write and to resume, beside the plain mode.

`python -m bench.blobs` prints the table. Each resume is a process of its own, imports not counted.
"""

from __future__ import annotations

import base64
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.core import TABLE, Figure
from refold.core.config import Config, RolloutSettings
from refold.core.items import Item, message
from refold.core.profile import Profile
from refold.core.records import Compacted
from refold.rollout.blobs import folder_of
from refold.session.clock import Clock
from refold.session.memory import Memory

PICTURES, COMPACTIONS = 100, 50
PICTURE_BYTES = 200 * 1024
SMALL = 10_000  # items without a long text
MOST_TIMES = 1.2  # the unique payload: issue 9, item 4
ROUNDS = 3
PROFILE = Profile(slug="m", context_window=10_000_000, known=True)

READ = """
import sys, time
from pathlib import Path
from refold.session.memory import read_thread

began = time.perf_counter()
read_thread(Path(sys.argv[1]))
taken = time.perf_counter() - began
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(taken * 1000, int(peak.split()[1]) / 1024)
"""


def rows() -> Iterator[object]:
    with tempfile.TemporaryDirectory() as name:
        pictures = [_picture(number) for number in range(PICTURES)]
        unique = sum(len(one["content"][0]["image_url"]) for one in pictures)
        (blobs, added, checkpoint), (plain, plain_added, plain_checkpoint) = (
            _written(Path(name) / str(on), pictures, on) for on in (True, False)
        )
        size, plain_size = _size(blobs), _size(plain)
        what = f"{PICTURES} pictures of 200 KiB, {COMPACTIONS} compactions that keep them"
        yield Figure(
            f"on disk, times the pictures' own bytes: {what}",
            "×",
            size / unique,
            "without blobs",
            plain_size / unique,
            most=MOST_TIMES,
        )
        yield Figure("a picture, recorded", "ms", added, "without blobs", plain_added)
        yield Figure("a checkpoint that keeps them all", "ms", checkpoint, "without blobs", plain_checkpoint)
        ours, theirs = _resumed(blobs), _resumed(plain)
        yield Figure("from file to thread", "ms", ours[0], "without blobs", theirs[0])
        yield Figure("peak memory of it", "MiB", ours[1], "without blobs", theirs[1])
        rounds = [[_small(Path(name) / f"{on} {turn}", on) for on in (True, False)] for turn in range(ROUNDS)]
        ours_small, theirs_small = (min(figures) for figures in zip(*rounds, strict=True))
        yield Figure("an item without a long text, recorded", "µs", ours_small, "without blobs", theirs_small)


def _picture(number: int) -> Item:
    data = base64.b64encode(random.Random(number).randbytes(PICTURE_BYTES)).decode()
    part = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
    return {"type": "message", "role": "user", "content": [part]}


def _opened(folder: Path, on: bool) -> Memory:
    config = Config(rollout=RolloutSettings(blobs=on))
    return Memory.new(folder, PROFILE, config, Clock(), cwd="/w", instructions="BASE")


def _written(folder: Path, pictures: list[Item], on: bool) -> tuple[Path, float, float]:
    """The file, and milliseconds for each picture and each checkpoint."""
    with _opened(folder, on) as memory:
        began = time.perf_counter()
        for picture in pictures:
            memory.add(picture)
        added = time.perf_counter()
        for _ in range(COMPACTIONS):
            memory.record(_checkpoint(memory))
        ended = time.perf_counter()
        assert memory.path is not None
        return memory.path, (added - began) * 1000 / len(pictures), (ended - added) * 1000 / COMPACTIONS


def _checkpoint(memory: Memory) -> Compacted:
    """What a compaction that keeps the pictures writes."""
    history = tuple(e.item for e in memory.thread.history)
    addresses = tuple(e.address for e in memory.thread.history)
    carried = {"method": "remote", "carried": {"thread": memory.id}}
    window = memory.thread.window.next(memory.clock.uuid())
    return Compacted(message="", history=history, addresses=addresses, window=window, steers={}, facts=carried)


def _small(folder: Path, on: bool) -> float:
    """Microseconds for each item."""
    with _opened(folder, on) as memory:
        memory.add({"role": "user", "content": "begin"})
        items = [
            memory.item(message("assistant", [f"a line of an answer, number {number}"])) for number in range(SMALL)
        ]
        began = time.perf_counter()
        for item in items:
            memory.store.append([item], turn_id=None, timestamp="2026-11-30T11:32:20.810Z")
        return (time.perf_counter() - began) * 1e6 / SMALL


def _size(path: Path) -> int:
    """Bytes that the file and what lies beside it take on the disk, whole blocks."""
    beside = list(folder_of(path).iterdir()) if folder_of(path).is_dir() else []
    return sum(one.stat().st_blocks * 512 for one in [path, *beside])


def _resumed(path: Path) -> tuple[float, float]:
    """Milliseconds of the quickest round, and the least MiB that one needed."""
    rounds: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
        ms, mib = done.stdout.split()
        rounds.append((float(ms), float(mib)))
    return min(ms for ms, _ in rounds), min(mib for _, mib in rounds)


if __name__ == "__main__":
    print(TABLE)
    for row in rows():
        print(row, flush=True)
