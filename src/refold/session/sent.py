"""Sent: a line in the log for each request that goes out, from which it can be made again (docs/rollout.md)."""

from __future__ import annotations

from typing import Any, Literal

from refold.core.compaction.local import Asking
from refold.core.prompt import Prompt
from refold.core.records import Known, Method, Record, RequestSent
from refold.core.wire import Request, Wire, hash_of
from refold.session.memory import Memory

AS_EVER = Asking()


def record_sent(
    memory: Memory,
    wire: Wire,
    prompt: Prompt,
    request: Request,
    *,
    kind: Literal["turn", "compaction"] = "turn",
    dropped: int = 0,
    asking: Asking = AS_EVER,
    method: Method | None = None,
    entries: int | None = None,
) -> None:
    """Record the request, and what it refers to that the log does not hold yet. `asking`: of one for a summary;
    `entries`: how many of the history's it reads, where that is not all of them."""
    records: list[Record] = []
    schema = prompt.output_schema

    def known(value: Any, digest: str) -> str:
        if digest not in memory.thread.known:
            records.append(Known(digest, value))
        return digest

    sent = RequestSent(
        kind=kind,
        spelling=known(wire.spelling, wire.spelling_hash),
        tools=known(prompt.tools, wire.hash_of_tools(prompt.tools)),
        sha256=request.sha256,
        size=request.size,
        items=request.items,
        dropped=dropped,
        handoff=None if asking.handoff is None else known(asking.handoff, hash_of(asking.handoff)),
        output_schema=None if schema is None else known(schema, hash_of(schema)),
        method=method,
        without_media=asking.without_media,
        budget=asking.budget or 0,
        entries=entries or 0,
    )
    memory.record(*records, sent)
