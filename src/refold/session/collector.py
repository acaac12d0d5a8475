"""Collector: Python's cycle collector, kept out of the way while a history is read: JSON holds no cycle."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def without_collector(*, ages: bool = False) -> Generator[None]:
    """Keep the cycle collector out of what makes many objects: it would walk them again and again, and find nothing.

    `ages`: all objects count as old afterwards, so that collections of young ones do not walk them either; for what is
    done once.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if ages and not gc.get_freeze_count():  # what the host froze stays frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
