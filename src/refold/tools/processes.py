"""Processes: the commands of a session that go on after their call, by id."""

from __future__ import annotations


class Processes:
    """Mutable: it holds what runs. Close it when the session ends: none of them outlives it."""

    async def close(self) -> None:
        """End them all."""
