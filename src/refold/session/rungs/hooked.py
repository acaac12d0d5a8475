"""Hooked: what the hooks around a compaction say to it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from refold.core.fragments import SUMMARY_MARK
from refold.core.history import Entry
from refold.errors import CompactionBlocked
from refold.session.rungs.job import Found, Job, closed_by


async def before(job: Job) -> Job:
    """The job with what the hooks want kept in particular. Raises CompactionBlocked when one says no."""
    kept = [job.focus] if job.focus else []
    for hook in job.hooks:
        try:
            text = await hook.before_compaction(job.why)
        except Exception as error:
            raise _blocked(error) from error
        kept += [text.strip()] if text and text.strip() else []
    return replace(job, focus="\n\n".join(kept)) if job.hooks and kept else job


async def after(job: Job, found: Found, snapshot: Sequence[Entry]) -> Found:
    """What was found, with the summary as the hooks leave it. Raises CompactionBlocked when one says no."""
    summary = found.replacement.message.removeprefix(SUMMARY_MARK) or None
    changed: str | None = None
    for hook in job.hooks:
        try:
            text = await hook.after_compaction(job.why, summary)
        except Exception as error:
            raise _blocked(error) from error
        if text and text.strip():
            summary = changed = text
    if changed is None:
        return found
    return replace(found, method="local", replacement=closed_by(job, snapshot, changed), response_id=None)


def _blocked(error: Exception) -> CompactionBlocked:
    if isinstance(error, CompactionBlocked):
        return error
    return CompactionBlocked(f"a hook kept the history from being compacted: {error or type(error).__name__}")
