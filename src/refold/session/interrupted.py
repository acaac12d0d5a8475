"""Interrupted: whether it is this task that is to stop, or something that it awaited was cancelled for itself."""

from __future__ import annotations

import asyncio


def is_interrupted() -> bool:
    """Asked where a CancelledError was caught: true when it has to be raised again."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
