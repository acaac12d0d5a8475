"""Real: the unmodified program from npm, installed once, run in bounded time against a scripted provider."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import msgspec

from interop.compare import Differs, Played
from interop.script import Turn
from refold.testing import ResponsesServer

VERSION = "0.171.0"
PLACE = Path(__file__).parent.parent / ".interop"
PROGRAM = PLACE / "real" / "node_modules" / ".bin" / "codex"
MODEL = "interop"
KEY = "none"  # the bearer that the provider is sent
BASE = "<BASE_INSTRUCTIONS>"  # short, and what the conformance tests know as base instructions
INSTALL_SECONDS = 1_200  # 430 MB
TURN_SECONDS = 60  # a turn takes well under one

CATALOGUE = {
    "models": [
        {
            "slug": MODEL,
            "display_name": MODEL,
            "description": "",
            "supported_reasoning_levels": [],
            "shell_type": "unified_exec",
            "visibility": "list",
            "supported_in_api": True,
            "priority": 1,
            "base_instructions": BASE,
            "truncation_policy": {"mode": "tokens", "limit": 10_000},
            "context_window": 272_000,
            "comp_hash": "0001",
            "experimental_supported_tools": [],
            "input_modalities": ["text", "image"],
            "supports_parallel_tool_calls": True,
            "supports_reasoning_summaries": False,
            "support_verbosity": False,
        }
    ]
}

CONFIG = """\
model = "{model}"
model_provider = "scripted"
model_catalog_json = "{home}/models.json"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[skills]
include_instructions = false

[model_providers.scripted]
name = "scripted"
base_url = "{url}"
env_key = "INTEROP_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


class NotInstalled(Exception):
    """The real program cannot be installed; the text says why."""


def install() -> str:
    """Install the program once, and tell its version. Raises NotInstalled."""
    if not PROGRAM.exists():
        npm = shutil.which("npm")
        if npm is None or shutil.which("node") is None:
            raise NotInstalled("npm is missing: install Node.js (https://nodejs.org) to get the real program")
        folder = PLACE / "real"
        folder.mkdir(parents=True, exist_ok=True)
        print(f"installing @openai/codex@{VERSION} into {folder} (once, about 430 MB)", flush=True)
        words = [npm, "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(folder)]
        _run([*words, f"@openai/codex@{VERSION}"], INSTALL_SECONDS)
    version = _run([str(PROGRAM), "--version"], TURN_SECONDS).strip()
    if VERSION not in version:
        raise NotInstalled(f"{PROGRAM} is {version}, not {VERSION}: remove {PLACE / 'real'}")
    return version


def _run(words: list[str], seconds: int) -> str:
    try:
        done = subprocess.run(  # noqa: S603 (our own words)
            words, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from None
    if done.returncode:
        raise NotInstalled(f"{Path(words[0]).name} failed: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


class Real:
    """The program with a private home. Mutable: its home fills with sessions and its index of them."""

    def __init__(self, home: Path, work: Path) -> None:
        self.home = home
        self.work = work
        self.home.mkdir(parents=True)
        (self.home / "models.json").write_text(json.dumps(CATALOGUE))

    def adopt(self, rollout: Path) -> Path:
        """A copy of a rollout in this home, where the program finds it by its id."""
        return copied(rollout, self.home)

    def play(self, turn: Turn, rollout: Path | None = None, *, verb: str = "resume") -> Played:
        """One turn, in a new session or in a rollout of this home (`verb` fork: in a new one that begins with it).

        Raises Differs when the program fails.
        """
        known = set(self.home.rglob("rollout-*.jsonl"))
        words = [str(PROGRAM), "exec", *([verb] if rollout else []), "--skip-git-repo-check", "--json"]
        if turn.limit is not None:
            words += ["-c", f"model_auto_compact_token_limit={turn.limit}"]
        words += [thread_of(rollout), turn.said] if rollout else [turn.said]
        with ResponsesServer(turn.replies) as server:
            done = self.start(words, server.url)
            requests = [request.input for request in server.requests]
        if done.returncode:
            said = (done.stderr + done.stdout).strip()[-600:]
            raise Differs(f"the real program ended with {done.returncode}: {said}")
        new = set(self.home.rglob("rollout-*.jsonl")) - known
        if len(new) != (rollout is None or verb == "fork"):
            raise Differs(f"the real program wrote {len(new)} new files")
        return Played("real", requests, new.pop() if new else rollout or self.home)

    def start(self, words: list[str], url: str) -> subprocess.CompletedProcess[str]:
        """The program with these arguments and a provider at `url`, until it ends. Raises Differs when it does not."""
        (self.home / "config.toml").write_text(CONFIG.format(model=MODEL, home=self.home, url=url))
        environ = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.home),
            "CODEX_HOME": str(self.home),
            "INTEROP_KEY": KEY,
        }
        try:
            return subprocess.run(  # noqa: S603 (our own words)
                words,
                check=False,
                cwd=self.work,
                env=environ,
                timeout=TURN_SECONDS,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        except subprocess.TimeoutExpired:
            raise Differs(f"the real program did not end within {TURN_SECONDS} s") from None


def copied(rollout: Path, home: Path) -> Path:
    """A copy of a rollout at its own place under another home."""
    parts = rollout.parts
    place = home.joinpath(*parts[len(parts) - 1 - parts[::-1].index("sessions") :])
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(rollout, place)
    return place


def thread_of(rollout: Path) -> str:
    """The id of the thread that a rollout holds."""
    with rollout.open("rb") as lines:
        return msgspec.json.decode(lines.readline())["payload"]["id"]
