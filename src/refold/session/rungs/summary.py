"""By a summary: the history and the handoff text go out, from an ever shorter history (spec §5, oracle §4, §6)."""

from __future__ import annotations

from refold.core.compaction import local
from refold.core.compaction.replacement import summarised
from refold.core.history import Entry, drop_oldest
from refold.core.pairing import for_prompt
from refold.core.templates import template
from refold.core.truncate import well_formed
from refold.errors import CompactionFailed, ContextWindowExceeded, ModelRefused, ModelUnavailable, ResponseIncomplete
from refold.model import Completed
from refold.session.home import handoff_text
from refold.session.patience import Patience, outlast
from refold.session.rungs.job import Found, Job, ask, completed, failed


async def by_summary(job: Job, snapshot: list[Entry]) -> Found:
    """Rungs: as it is → without the oldest item, again and again, while it does not fit → again after a wait."""
    memory = job.memory
    text, response_id, dropped = await _summarise(job, snapshot)
    replacement = summarised(
        snapshot,
        job.fresh.context,
        text,
        summary_id=memory.clock.item_id("msg"),
        turn_id=memory.thread.open_turn,
    )
    return Found(method="local", replacement=replacement, response_id=response_id, dropped=dropped)


async def _summarise(job: Job, snapshot: list[Entry]) -> tuple[str, str | None, int]:
    """The accepted summary, the id of its response, and how many of the oldest items were left out of the request."""
    memory, model, handoff = job.memory, job.model, handoff_text(job.memory.config)
    if job.focus:
        handoff = (handoff or template("handoff")) + "\n\n" + template("focus").format(focus=well_formed(job.focus))
    patience = Patience(model.provider, memory.clock)
    entries = whole = for_prompt(snapshot, model.profile.input_modalities)
    while True:
        dropped = len(whole) - len(entries)
        done = Completed()
        base = memory.thread.base_instructions
        prompt = local.request(entries, model.profile, base_instructions=base, handoff=handoff)
        try:
            output, done = await ask(job, prompt, "local", dropped, handoff)
            text = local.settle(output)
        except ContextWindowExceeded as error:
            failed(memory, "local", dropped, str(error))
            if not entries:
                raise
            entries = drop_oldest(entries)
            patience.renew()
        except ResponseIncomplete as error:  # half a summary is none, and asking again would cut it off again
            failed(memory, "local", dropped, str(error), error.usage)
            raise
        except ModelRefused as error:
            failed(memory, "local", dropped, str(error))
            raise
        except (ModelUnavailable, CompactionFailed) as error:
            failed(memory, "local", dropped, str(error), done.usage)
            await outlast(error, patience, model, memory)
        else:
            completed(memory, "local", dropped, done)
            return text, done.response_id, dropped
