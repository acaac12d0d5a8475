"""S22: compressed sessions are listed once, read as the plain text, and never appended to."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import refold
from refold import Memory
from refold.core.thread import Thread, same_state
from refold.rollout import Catalogue, read_lines
from refold.rollout.examination import examine
from refold.session.memory import read_thread

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CASE = Path(__file__).parent.parent / "data" / "cases" / "S22-compressed-rollouts"
SOURCE = Path(refold.__file__).parents[1]
A, B, C = (f"019c2000-0000-7000-8000-000000000{end}" for end in ("016", "3fe", "7e6"))
LIST = """
import sys
if sys.argv[2:]:
    sys.modules["backports.zstd"] = sys.modules["compression.zstd"] = None  # as if it was not installed
from pathlib import Path
from refold.rollout import Catalogue
for one in Catalogue(Path(sys.argv[1])).sessions():
    print(one.id, one.problem)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # of this program alone
print(int(peak.split()[1]) // 1024)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    shutil.copytree(CASE, tmp_path / "home")
    return tmp_path / "home"


def file_of(home: Path, thread_id: str) -> Path:
    found, _ = Catalogue(home).find(thread_id)
    return found


def listed(home: Path, *words: str) -> list[str]:
    """What a process that lists them prints; its peak memory in MB at the end."""
    command = [sys.executable, "-c", LIST, str(home), *words]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env={"PYTHONPATH": str(SOURCE)}
    )
    return ended.stdout.splitlines()


def test_each_session_is_listed_once_and_a_broken_one_stops_nothing(home: Path) -> None:
    found = {one.id: one for one in Catalogue(home).sessions()}
    assert set(found) == {A, B, C} and len(Catalogue(home).sessions()) == 3
    assert found[B].path.suffix == ".jsonl", "the plain file of two"
    assert (found[A].problem, found[B].problem) == (None, None)
    assert str(found[C].path) in str(found[C].problem)


def test_a_compressed_session_reads_like_the_plain_text(home: Path, tmp_path: Path) -> None:
    path = file_of(home, A)
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(zstd.decompress(path.read_bytes()))
    packed = Thread.replay(read_lines(path))
    assert len(packed.history) == 2 and same_state(packed, Thread.replay(read_lines(plain)))


def test_going_on_makes_the_plain_file_and_leaves_the_compressed_one(home: Path) -> None:
    path = file_of(home, A)
    before = path.read_bytes(), path.stat().st_mtime_ns
    with Memory.open(path, model="gpt-5.5") as memory:
        memory.add({"role": "user", "content": "more"})
        assert memory.path == path.with_suffix("")
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert file_of(home, A) == path.with_suffix("")
    assert [one.id for one in Catalogue(home).sessions()].count(A) == 1
    assert len(read_thread(file_of(home, A)).history) == 3
    assert not [one for one in path.parent.iterdir() if not one.name.endswith((".jsonl", ".zst"))]


def test_content_says_that_a_file_is_compressed_whatever_its_name(tmp_path: Path) -> None:
    source = next(CASE.rglob("*0016.jsonl.zst"))
    path = Path(shutil.copy(source, tmp_path / "rollout.jsonl"))
    assert list(read_lines(path)) == list(read_lines(source))
    assert [one.kind for one in examine(path).findings if one.is_damage] == ["packed_name"]


def test_without_zstd_a_session_is_listed_by_its_name_with_what_to_install(home: Path) -> None:
    lines = listed(home, "without")
    [told] = [line for line in lines if line.startswith(A)]
    assert "is compressed; install backports.zstd to read it" in told
    assert [line.split()[0] for line in lines[:-1]].count(B) == 1


def test_a_small_file_that_is_a_very_large_one_costs_a_list_little(home: Path) -> None:
    path = file_of(home, A)
    packer = zstd.ZstdCompressor()
    head = zstd.decompress(path.read_bytes())
    with path.open("wb") as file:
        file.write(packer.compress(head + b'{"timestamp":"","type":"response_item","payload":{"text":"'))
        for _ in range(512):
            file.write(packer.compress(b"0" * (1 << 20)))
        file.write(packer.flush())
    assert path.stat().st_size < 1 << 20
    *lines, peak = listed(home)
    assert [line for line in lines if line.startswith(A)] == [f"{A} None"]
    assert int(peak) < 150, "MB, and not 512"
