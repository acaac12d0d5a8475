"""S25: file names carry local time, records UTC; nothing finds or sorts a session by the time in its name."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from refold.core.config import Config
from refold.core.items import message
from refold.core.profile import Profile
from refold.rollout import Catalogue
from refold.session.clock import Clock
from refold.session.memory import Memory

CASE = Path(__file__).parent.parent / "data" / "cases" / "S25-local-time-in-file-names"
X, Y = "019c2000-0000-7000-8000-000000000019", "019c2000-0000-7000-8000-000000000401"
AT = datetime(2026, 3, 7, 17, 30, tzinfo=UTC)


class InShanghai(Clock):
    """A clock that stands still, eight hours before UTC."""

    def now(self) -> datetime:
        return AT.astimezone(timezone(timedelta(hours=8)))

    def timestamp(self) -> str:
        return AT.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    shutil.copytree(CASE, tmp_path / "home")
    return tmp_path / "home"


def test_the_list_is_sorted_by_when_a_session_began(home: Path) -> None:
    found = Catalogue(home).sessions()
    assert [one.id for one in found] == [Y, X]
    assert found[0].path.name < found[1].path.name, "by its name the other one would be the newer"


@pytest.mark.parametrize("thread_id", [X, Y])
def test_a_session_is_found_by_the_id_in_its_name_in_any_folder(home: Path, thread_id: str) -> None:
    path, own = Catalogue(home).find(thread_id)
    assert own and path.name.endswith(f"-{thread_id}.jsonl")
    other = home / "sessions" / "1999" / "01" / "01"
    other.mkdir(parents=True)
    moved = path.rename(other / path.name)
    assert Catalogue(home).find(thread_id) == (moved, True)


def test_a_new_session_has_local_time_in_its_name_and_utc_inside(tmp_path: Path) -> None:
    memory = Memory.new(tmp_path, Profile(slug="m"), Config(), InShanghai(), cwd="/w", instructions=None)
    with memory:
        memory.record(memory.item(message("user", ["hello"])))
        path = memory.path
    assert path == tmp_path / "sessions" / "2026" / "03" / "08" / f"rollout-2026-03-08T01-30-00-{memory.id}.jsonl"
    first = json.loads(path.read_bytes().splitlines()[0])
    assert first["payload"]["timestamp"] == first["timestamp"] == "2026-03-07T17:30:00.000Z"


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ("2026-03-08T00:00:00Z", 1),
        ("2026-03-08T08:00:00.000+08:00", 1),
        ("2026-03-07T17:00:00Z", 2),
        ("yesterday", 0),
        (None, 0),
    ],
)
def test_times_of_every_shape_are_sorted(home: Path, told: str | None, place: int) -> None:
    path, _ = Catalogue(home).find(X)
    meta = json.loads(path.read_bytes().splitlines()[0])
    meta["payload"] |= {"id": "other", "timestamp": told}
    other = path.with_name("rollout-2026-03-08T01-30-00-other.jsonl")
    other.write_text(json.dumps(meta) + "\n")
    os.utime(other, (1_900_000_000, 1_900_000_000))  # the file's time counts where the record does not tell
    found = [one.id for one in Catalogue(home).sessions()]
    assert found.index("other") == place and len(found) == 3
