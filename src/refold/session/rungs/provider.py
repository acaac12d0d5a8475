"""By the provider: one request with the trigger, and the item that only the provider can read (spec §6, oracle §7)."""

from __future__ import annotations

import msgspec

from refold.core.compaction import remote
from refold.core.compaction.replacement import assemble
from refold.core.history import Entry
from refold.core.items import with_id
from refold.core.pairing import for_prompt
from refold.errors import CompactionFailed, ContextWindowExceeded, ModelRefused, ModelUnavailable, ResponseIncomplete
from refold.model import Completed
from refold.session.patience import Patience, outlast
from refold.session.rungs.job import Found, Job, ask, completed, failed

REMOTE_STREAM_RETRIES = 2  # a provider that breaks off twice more will not compact (spec §6.3)


async def by_provider(job: Job, snapshot: list[Entry]) -> Found:
    """The provider compacts: one request with the trigger, asked again while the stream breaks."""
    memory, profile, base = job.memory, job.model.profile, job.memory.thread.base_instructions
    retries = min(job.model.provider.stream_max_retries, REMOTE_STREAM_RETRIES)
    patience = Patience(msgspec.structs.replace(job.model.provider, stream_max_retries=retries), memory.clock)
    left_out = remote.outputs_over(snapshot, base, profile.usable_window)
    prompt = remote.request(snapshot, profile, base_instructions=base, tools=job.tools, left_out=left_out)
    while True:
        done = Completed()
        try:
            output, done = await ask(job, prompt, "remote", left_out)
            item = remote.settle(output)
        except ModelUnavailable as error:
            failed(memory, "remote", left_out, str(error), done.usage)
            await outlast(error, patience, job.model, memory)
        except (ModelRefused, CompactionFailed, ContextWindowExceeded, ResponseIncomplete) as error:
            failed(memory, "remote", left_out, str(error), done.usage)
            raise
        else:
            completed(memory, "remote", left_out, done)
            kept = remote.retained(for_prompt(snapshot, profile.input_modalities))
            closing = with_id(item, memory.clock.item_id("cmp"))
            replacement = assemble(snapshot, job.fresh.context, kept, closing)
            return Found(method="remote", replacement=replacement, response_id=done.response_id, dropped=left_out)
