"""README's Python runs as it stands, against the shipped server: async, blocking, and without a loop."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from refold.testing import ResponsesServer, text_reply

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def run(code: str, folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    environ = {
        **os.environ,
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": "sk-test",
        "REFOLD_HOME": str(folder / "home"),
        "CODEX_HOME": str(folder / "none"),
    }
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_readme_has_the_three_forms() -> None:
    assert len(BLOCKS) == 3
    assert "async with Session.start" in BLOCKS[0]
    assert "with Session.start_sync" in BLOCKS[1]
    assert "Memory.open" in BLOCKS[2]


@pytest.mark.parametrize("number", range(3))
def test_a_block_of_readme_runs(number: int, tmp_path: Path) -> None:
    with ResponsesServer([text_reply("It is fixed.")]) as server:
        done = run(BLOCKS[number], tmp_path, server.url)
    assert (done.returncode, done.stderr) == (0, "")
    if number < 2:
        assert "It is fixed." in done.stdout
        assert server.requests[0].header("authorization") == "Bearer sk-test"


def test_the_first_block_is_about_ten_lines() -> None:
    code = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(code) <= 12
