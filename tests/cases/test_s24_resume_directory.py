"""S24: a resumed session works where it worked last, and says so when that is not to be had."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from refold import Session
from refold.cli.group import cli
from refold.errors import ConfigError
from refold.model.scripted import ScriptedModel
from refold.session.memory import read_thread
from refold.testing import text_reply

CASE = Path(__file__).parent.parent / "data" / "cases" / "S24-resume-directory" / "rollout.jsonl"

ID = "019c2000-0000-7000-8000-000000000018"


@pytest.fixture
def rollout(tmp_path: Path) -> Path:
    """The case with folders that are there: begun in alpha, last turn in beta."""
    path = tmp_path / "home" / "rollout.jsonl"
    path.parent.mkdir()
    path.write_text(CASE.read_text(encoding="utf-8").replace("/srv", str(tmp_path)), encoding="utf-8")
    for name in ("alpha", "beta", "gamma"):
        (tmp_path / name).mkdir()
    return path


async def said_in(rollout: Path, cwd: Path | None = None) -> tuple[Any, list[dict[str, Any]]]:
    """The request that a resumed session sends, and the rollout's lines afterwards."""
    model = ScriptedModel([text_reply("fine")])
    home = rollout.parent
    session = Session.resume(rollout, model=model, home=home, in_place=True, cwd=cwd)
    async with session:
        await session.send("and now?")
    lines = [json.loads(line) for line in rollout.read_text(encoding="utf-8").splitlines()]
    return json.dumps(model.requests[-1]["input"]), lines


def directories(lines: list[dict[str, Any]]) -> list[str]:
    return [Path(line["payload"]["cwd"]).name for line in lines if line["type"] == "turn_context"]


def test_it_goes_on_where_the_last_turn_was_wherever_the_process_is(
    rollout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "gamma")
    _, lines = asyncio.run(said_in(rollout))
    assert directories(lines) == ["alpha", "beta", "beta"]
    thread = read_thread(rollout)
    assert thread.meta is not None and Path(thread.meta.cwd).name == "alpha", "where it began stays known"
    assert Path((thread.settings or {})["cwd"]).name == "beta"


def test_another_folder_is_taken_when_it_is_asked_for_and_the_model_is_told(rollout: Path, tmp_path: Path) -> None:
    asyncio.run(said_in(rollout))
    request, lines = asyncio.run(said_in(rollout, tmp_path / "gamma"))
    assert directories(lines)[-1] == "gamma"
    told = [at for at in (request.rfind(f"<cwd>{tmp_path / name}</cwd>") for name in ("beta", "gamma")) if at >= 0]
    assert len(told) == 2 and told == sorted(told), "the new one after the old one"


def test_a_folder_that_is_gone_is_an_error_that_names_it_and_reading_still_works(rollout: Path, tmp_path: Path) -> None:
    (tmp_path / "beta").rmdir()
    before = rollout.read_bytes()
    with pytest.raises(ConfigError, match=r"beta is not a folder that exists; choose another one \(--cd\)"):
        asyncio.run(said_in(rollout))
    assert rollout.read_bytes() == before
    assert len(read_thread(rollout).history) == 4
    _, lines = asyncio.run(said_in(rollout, tmp_path / "gamma"))
    assert directories(lines)[-1] == "gamma"


def test_sessions_here_are_those_whose_newest_turn_was_here_under_any_name_of_the_folder(
    rollout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "home" / "sessions" / "2026" / "02" / "03" / f"rollout-2026-02-03T04-05-06-{ID}.jsonl"
    place.parent.mkdir(parents=True)
    rollout.rename(place)
    (tmp_path / "beta2").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "beta")
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    found: dict[str, int] = {}
    for name in ("alpha", "beta", "beta2", "link"):
        monkeypatch.chdir(tmp_path / name)
        cli.main(["sessions", "--here", "--json"], standalone_mode=False)
        found[name] = len(capsys.readouterr().out.splitlines())
    assert found == {"alpha": 0, "beta": 1, "beta2": 0, "link": 1}
