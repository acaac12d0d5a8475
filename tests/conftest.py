"""Every test starts from a home of its own: nobody's profile, sessions or settings reach it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def _empty_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A login shell reads the profile in HOME, which may take seconds or wait for a lock."""
    before = {name: os.environ.get(name) for name in ("HOME", "REFOLD_HOME", "CODEX_HOME")}
    home: Path = tmp_path_factory.mktemp("home")
    os.environ["HOME"] = str(home)
    os.environ.pop("REFOLD_HOME", None)
    os.environ.pop("CODEX_HOME", None)
    yield
    for name, value in before.items():
        if value is not None:
            os.environ[name] = value
