"""Views: pure read models of a log. Lines and threads go in, rows come out; faces paint them.

Public names: Transcript and transcript (what happened), Context and context (what the next request holds).
"""

from __future__ import annotations

from refold.views.context import Context, ContextRow, context
from refold.views.transcript import Row, Transcript, transcript

__all__ = ["Context", "ContextRow", "Row", "Transcript", "context", "transcript"]
