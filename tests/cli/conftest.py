"""A person's machine for the tests of the command line: a home of its own, and `refold` as a real process."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.cli.main import main
from refold.testing import LoggedRequest, ResponsesServer

SOURCE = str(Path(refold.__file__).parents[1])
MODEL = "mock-tokens"
MODELS = {
    "models": [{"slug": MODEL, "context_window": 272_000, "truncation_policy": {"mode": "tokens", "limit": 10_000}}]
}
FOREIGN = ("REFOLD_", "CODEX_", "OPENAI_", "NO_COLOR", "FORCE_COLOR")
PATIENCE = 60  # seconds that no command needs


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it said."""

    status: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """Its JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def thread_id(self) -> str:
        """Which session its JSON lines are about."""
        first = self.events[0]
        assert list(first) == ["type", "thread_id"] and first["type"] == "thread.started"
        return first["thread_id"]

    @property
    def complaint(self) -> str:
        """The one line that says what is wrong; progress and click's usage hint may stand beside it."""
        assert "Traceback" not in self.err
        found = [line for line in self.err.splitlines() if line.startswith(("refold: ", "Error: "))]
        assert len(found) == 1, f"not one line:\n{self.err}"
        return found[0]

    @property
    def only_complaint(self) -> str:
        """The complaint where nothing was begun: nothing else is said, save click's usage hint."""
        others = [line for line in self.err.splitlines() if line.strip() and not line.startswith(("Usage:", "Try "))]
        assert others == [self.complaint]
        return self.complaint


class Machine:
    """A home, a folder to work in, and an environment without anything of the developer's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.work = folder / "w"
        self.work.mkdir()
        self.environ = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)} | {
            "HOME": str(folder),
            "REFOLD_HOME": str(self.home),
            "PYTHONPATH": SOURCE,
            "NO_PROXY": "127.0.0.1",
            "TERM": "xterm-256color",
        }

    def configure(self, text: str) -> None:
        """Write config.toml."""
        self.home.mkdir(exist_ok=True)
        (self.home / "config.toml").write_text(text, encoding="utf-8")

    def connect(self, server: ResponsesServer, extra: str = "") -> None:
        """Let the configured provider be a scripted one, and its model known."""
        self.configure(
            f'model = "{MODEL}"\nmodel_provider = "x"\nmodel_catalog_json = "{self.folder}/models.json"\n{extra}\n'
            f'[model_providers.x]\nname = "scripted"\nbase_url = "{server.url}"\n'
            "request_max_retries = 0\nstream_max_retries = 0\n"
        )
        (self.folder / "models.json").write_text(json.dumps(MODELS))

    def command(self, *words: Any) -> list[str]:
        return [sys.executable, "-m", "refold", *map(str, words)]

    def refold(self, *words: Any, said: str | bytes = b"", cwd: Path | None = None, **environ: str) -> Ended:
        """Run a command to its end; `said` is its standard input."""
        ended = subprocess.run(
            self.command(*words),
            input=said.encode() if isinstance(said, str) else said,
            capture_output=True,
            cwd=cwd or self.work,
            env=self.environ | environ,
            timeout=PATIENCE,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())

    def start(self, *words: Any, **options: Any) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            self.command(*words), text=True, cwd=self.work, env=self.environ, **{**pipes, **options}
        )

    def rollouts(self) -> list[Path]:
        """The sessions' files, oldest first."""
        return sorted(self.home.glob("sessions/*/*/*/*"))

    @property
    def rollout(self) -> Path:
        """The only one."""
        [path] = self.rollouts()
        return path

    @staticmethod
    def fingerprint(path: Path) -> tuple[str, int]:
        """What tells whether a file was touched: its bytes and its time."""
        return hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns

    @staticmethod
    def said(request: LoggedRequest, role: str) -> list[str]:
        """What one side said in a request, without injected context."""
        found = [part["text"] for item in request.input if item.get("role") == role for part in item["content"]]
        return [text for text in found if not text.startswith(("<", "#"))]

    def records(self, path: Path | None = None) -> list[dict[str, Any]]:
        """The lines of a rollout."""
        return [json.loads(line) for line in (path or self.rollout).read_bytes().splitlines()]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def foreign(machine: Machine) -> Path:
    """A session of the real program, outside every home, whose folder is there."""
    path = machine.folder / "theirs" / "saved.jsonl"
    path.parent.mkdir()
    text = (Path(__file__).parents[1] / "data/oracle/rollouts/a_one_turn.jsonl").read_text(encoding="utf-8")
    path.write_text(text.replace('"/w"', json.dumps(str(machine.work))), encoding="utf-8")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`refold` inside this process, for commands that only read: `here("show", path)`."""
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*words: Any) -> Ended:
        capsys.readouterr()
        heard = signal.getsignal(signal.SIGINT)  # a program that ends hears none; this process goes on
        try:
            with pytest.raises(SystemExit) as ended:
                main([str(word) for word in words])
        finally:
            signal.signal(signal.SIGINT, heard)
        told = capsys.readouterr()
        return Ended(int(ended.value.code or 0), told.out, told.err)

    return run
