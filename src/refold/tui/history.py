"""History: what a person said before, kept in a file that only they can read, newest last."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

NAME = "chat_history"
MOST_ENTRIES = 1_000  # that Up can reach
LONGEST_FILE = 1 << 20  # bytes; a longer one is cut to its newest entries when it is opened
PRIVATE = 0o600


class SaidBefore:
    """Mutable: it grows with what is said. One JSON string a line. A file that cannot be written costs nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self) -> list[str]:
        """Oldest first. Lines that are no JSON string are passed over."""
        try:
            lines = self._path.read_bytes().splitlines()[-MOST_ENTRIES:]
        except OSError:
            return []
        found: list[str] = []
        for line in lines:
            with suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, str):
                    found.append(value)
        self._shorten(found)
        return found

    def add(self, text: str) -> None:
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._write(self._path, [text], os.O_APPEND)

    def _shorten(self, entries: list[str]) -> None:
        with suppress(OSError):
            if self._path.stat().st_size > LONGEST_FILE:
                half = entries[-MOST_ENTRIES // 2 :]
                while len(half) > 1 and sum(map(len, half)) > LONGEST_FILE // 2:
                    half = half[len(half) // 2 :]
                shorter = self._path.with_name(f"{NAME}.{os.getpid()}")
                self._write(shorter, half, os.O_TRUNC)
                shorter.replace(self._path)

    @staticmethod
    def _write(path: Path, entries: list[str], how: int) -> None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | how, PRIVATE)
        try:
            os.fchmod(file, PRIVATE)  # also one that was made by hand
            os.write(file, "".join(json.dumps(entry) + "\n" for entry in entries).encode())
        finally:
            os.close(file)
