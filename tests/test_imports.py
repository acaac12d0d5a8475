"""What is imported where: start-up must not pay for what it does not use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from refold.testing import ResponsesServer, text_reply

HEAVY = {
    "pydantic",
    "openai",
    "mcp",
    "textual",
    "starlette",
    "uvicorn",
    "dbos",
    "rich",
    "prompt_toolkit",
    "cryptography",
    "sqlite3",
    "structlog",
    "opentelemetry",
    "multiprocessing",
    "unittest",
}
# Nothing but the interpreter's own: neither our libraries nor what they bring.
START_UP = HEAVY | {"importlib.metadata", "asyncio", "msgspec", "httpx2", "click", "json", "typing_extensions"}


def imported(*words: str, **environ: str) -> set[str]:
    """The modules that a process imports, as `-X importtime` tells them."""
    command = [sys.executable, "-X", "importtime", *words]
    done = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=True
    )
    rows = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {row.rsplit("|", 1)[1].strip() for row in rows}


def bare() -> set[str]:
    """What an interpreter imports by itself here (site-packages may add to it)."""
    return imported("-c", "pass")


def test_import_refold_costs_nothing() -> None:
    assert not START_UP & (imported("-c", "import refold") - bare())


def test_version_costs_nothing() -> None:
    assert not START_UP & (imported("-m", "refold", "--version") - bare())


def test_help_needs_no_model() -> None:
    found = imported("-m", "refold", "--help") - bare()
    assert "click" in found
    assert not (HEAVY | {"importlib.metadata", "asyncio", "msgspec", "httpx2"}) & found


def test_a_run_up_to_its_answer_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    """httpx2 itself reads its version through importlib.metadata; nothing else may."""
    with ResponsesServer([text_reply("hello")]) as server:
        found = imported(
            "-m",
            "refold",
            "run",
            "hi",
            REFOLD_HOME=str(tmp_path / "home"),
            CODEX_HOME=str(tmp_path / "none"),
            OPENAI_BASE_URL=server.url,
            OPENAI_API_KEY="sk-test",
        )
    assert "httpx2" in found
    assert not HEAVY & (found - bare())
    assert not any(name.startswith("refold.testing") for name in found)
