"""RUNTIME: sessions. Memory owns log and thread; Session adds a model, tools and the turn loop.

memory (record, prompt, make room) → session (start, resume, fork, send, steer, interrupt) → turn (the loop on one
screen) → sampling (one request and its tools) and ladder (compaction attempts). events: what a turn tells.
"""

from __future__ import annotations

from refold.session.memory import Memory
from refold.session.session import Session, Turn, TurnResult

__all__ = ["Memory", "Session", "Turn", "TurnResult"]
