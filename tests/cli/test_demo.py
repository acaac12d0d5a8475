"""The demo: a real session whose requests have the recorded shape, resumed by a second process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from refold.core.items import message_text
from refold.core.templates import template
from refold.session.memory import read_thread


def play(folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "NO_COLOR": "1", "REFOLD_HOME": str(folder / "unused")}
    command = [sys.executable, "-m", "refold", "demo", "--folder", str(folder / "demo")]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)


def test_the_demo_plays_a_whole_session(tmp_path: Path) -> None:
    done = play(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    for promised in (
        "The model's side is scripted",
        "补充限制",  # the steer
        "limited for the model",
        "what the model saw before",
        "⇣ compacted:",
        "The follow-up question",
        "A second process resumes",
        "OPENAI_API_KEY",
    ):
        assert promised in done.stdout + done.stderr, promised
    assert (tmp_path / "demo/project/README.md").read_text().startswith("# Codex Demo\n")
    [log] = (tmp_path / "demo/home/sessions").rglob("*.jsonl")
    assert str(log) in done.stdout
    thread = read_thread(log)
    assert (thread.turns, thread.compactions, thread.open_turn) == (3, 1, None)
    assert not (tmp_path / "unused").exists()


def test_the_demo_folder_must_be_usable(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("a file")
    done = play(tmp_path)
    assert done.returncode == 2
    assert "cannot be used" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demos_compaction_has_the_recorded_shape(tmp_path: Path) -> None:
    """The request for a summary: whole history, handoff text last, no tools. The next one: the recorded order."""
    from refold.cli.demo import SUMMARY, first_process_requests

    requests = first_process_requests(tmp_path / "place")
    before, asked, after = requests[1].json, requests[2].json, requests[3].json
    known = len(before["input"])
    assert asked["input"][:known] == before["input"]
    assert [item["type"] for item in asked["input"][known:-1]] == ["function_call", "function_call_output"]
    assert asked["input"][-1] == {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": template("handoff")}],
    }
    assert (asked["tools"], asked["parallel_tool_calls"]) == ([], False)
    shape = [(item["role"], message_text(item).split("\n")[0][:24]) for item in after["input"]]
    assert [role for role, _ in shape] == ["developer", "user", "developer", "user", "user", "user"]
    assert shape[1][1] == "Create README.md with th"
    assert shape[2][1].startswith("<permissions instr")
    assert shape[3][1] == "<environment_context>"
    assert shape[4][1].startswith("补充限制")
    assert message_text(after["input"][5]) == template("summary_prefix") + "\n" + SUMMARY
