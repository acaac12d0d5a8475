"""Peers: who else plays the same turn against the same provider; refold first, the others where they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Protocol

import msgspec
from interop.real import CATALOGUE, CONFIG, MODEL, PLACE, PROGRAM, copied

LIBRARIES = PLACE / "libraries" / "bin" / "python"  # `make peers` makes it
SECONDS = 300  # a run that takes longer is stopped
HUGE = 100_000_000  # tokens: no bench compacts


class Start(msgspec.Struct, frozen=True):
    """A command and its environment."""

    words: list[str]
    environ: dict[str, str]

    def run(self) -> None:
        subprocess.run(
            self.words,
            env=self.environ,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
        )


class History(msgspec.Struct, frozen=True):
    """The same items twice: as the rollout of a session of refold's, and as a JSON list."""

    home: Path
    session: str
    rollout: Path
    plain: Path


class Peer(Protocol):
    name: str
    slow: bool  # a long history costs it seconds per request

    def installed(self) -> bool: ...

    def turn(self, url: str, folder: Path, history: History | None = None) -> Start:
        """What plays one turn at this provider, with `folder` for its files; after this history, if there is one."""
        ...


class Refold:
    """`guarded`: with a sandbox, a policy that asks, somebody to ask, and a hook around each call."""

    name, slow = "refold", False

    def __init__(self, *, guarded: bool = False) -> None:
        self._guarded = {"BENCH_GUARDED": "1"} if guarded else {}

    def installed(self) -> bool:
        return True

    def turn(self, url: str, folder: Path, history: History | None = None) -> Start:
        place = [str(history.home), history.session] if history else [str(folder)]
        return Start([sys.executable, "-m", "bench.ours", url, *place], {**os.environ, **self._guarded})


class Bare:
    name, slow = "bare loop", False

    def installed(self) -> bool:
        return True

    def turn(self, url: str, folder: Path, history: History | None = None) -> Start:
        plain = [str(history.plain)] if history else []
        return Start([sys.executable, "-m", "bench.bare", url, *plain], dict(os.environ))


class Codex:
    name, slow = "Codex", False

    def installed(self) -> bool:
        return PROGRAM.exists()

    def turn(self, url: str, folder: Path, history: History | None = None) -> Start:
        home = Path(tempfile.mkdtemp(dir=folder))
        (home / "config.toml").write_text(CONFIG.format(model=MODEL, home=home, url=url))
        models = [{**model, "context_window": HUGE} for model in CATALOGUE["models"]]
        (home / "models.json").write_bytes(msgspec.json.encode({"models": models}))
        words = [str(PROGRAM), "exec", *(["resume"] if history else []), "--skip-git-repo-check", "--json"]
        if history:
            copied(history.rollout, home)
            words.append(history.session)
        environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return Start([*words, "go"], {**environ, "CODEX_HOME": str(home), "INTEROP_KEY": "none"})


class AgentsSdk:
    name, slow = "Agents SDK", True

    def installed(self) -> bool:
        return LIBRARIES.exists()

    def turn(self, url: str, folder: Path, history: History | None = None) -> Start:
        plain = [str(history.plain)] if history else []
        return Start([str(LIBRARIES), str(Path(__file__).with_name("sdk.py")), url, *plain], dict(os.environ))


PEERS: tuple[Peer, ...] = (Refold(), Bare(), Codex(), AgentsSdk())
