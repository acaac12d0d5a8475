"""By a summary: the history and the handoff text go out, in ever more modest ways (spec §5, oracle §4, §6).

Rungs: as it is → without the oldest items, as many as the provider's limit tells, else one by one → without media →
again after a wait → as one text, where the items were answered with the next step instead of a summary.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from refold.core.compaction import local
from refold.core.compaction.due import size_of
from refold.core.history import Entry, entry
from refold.core.items import user_message
from refold.core.pairing import for_prompt
from refold.core.profile import FALLBACK_CONTEXT_WINDOW
from refold.core.prompt import Prompt
from refold.core.templates import template
from refold.core.truncate import well_formed
from refold.errors import CompactionFailed, ContextWindowExceeded, ModelRefused, ModelUnavailable, ResponseIncomplete
from refold.model import Completed
from refold.session.events import Notice
from refold.session.home import handoff_text
from refold.session.patience import Patience, outlast
from refold.session.rungs.job import Found, Job, ask, closed_by, completed, failed
from refold.session.rungs.summariser import summarising

if TYPE_CHECKING:
    from refold.core.compaction.accepting import Unfit

ASKED_AGAIN = 1  # times for a reply that is no summary: the whole context is read each time
ANSWER_SHARE = 8  # of so many parts of a context window one is for the answer
GUESS_SHARE = 8  # where the estimate says that it fits, one part of so many is left out each time
TRANSCRIPT_PERCENT = 75  # of the context window: the estimate is rough, and the answer needs room
LEAST_BUDGET = 500  # tokens: a shorter transcript is not worth a request
REFUSES_CONTENT = frozenset({None, 400, 415, 422})  # None: told in a stream
ACTED = frozenset({"empty", "tool call", "echo"})  # instead of summing up: another rendering may help


async def by_summary(job: Job, snapshot: list[Entry]) -> Found:
    """The summary that the first rung to give one gave. Raises what the last of them failed with."""
    async with summarising(job) as asked:
        return await Search(asked, snapshot, is_own=asked is not job).found()


class Search:
    """Mutable: how the summary is asked for next, and what the answers so far have taught."""

    def __init__(self, job: Job, snapshot: list[Entry], *, is_own: bool = False) -> None:
        self.job, self.snapshot, self.is_own = job, snapshot, is_own
        self.patience = Patience(job.model.provider, job.memory.clock)
        self.limit: int | None = None  # the model's true context window, in tokens, once the provider told it
        self.overflows = self.unfit = 0
        self.asking = local.Asking(handoff=_handoff(job))
        if job.memory.config.compaction.rendering == "flattened":
            self.asking = msgspec.structs.replace(self.asking, budget=self._budget())

    async def found(self) -> Found:
        """Ask until there is a summary, or nothing is left to try."""
        found = None
        while found is None:
            found = await self._attempt(*self._prompt())
        return found

    def _prompt(self) -> tuple[Prompt, int]:
        """What is asked next, and how many entries are left out of it."""
        job, asking = self.job, self.asking
        tools = job.tools if job.memory.config.compaction.keep_tools else ()
        if asking.as_it_is and job.sees_live(self.snapshot):
            return local.closed(job.memory.prompt(tools), asking.handoff), 0
        base = job.memory.thread.base_instructions
        return local.prompt_of(self.snapshot, job.model.profile, asking, base_instructions=base, tools=tools)

    async def _attempt(self, prompt: Prompt, left_out: int) -> Found | None:
        """One request; None when it is to be asked again, otherwise or after a wait."""
        memory, done = self.job.memory, Completed()
        try:
            output, done = await ask(self.job, prompt, "local", self.asking.dropped, self.asking)
        except ContextWindowExceeded as error:
            failed(memory, "local", left_out, str(error))
            if not self._ask_for_less(error.limit, prompt):
                raise
            return None
        except ResponseIncomplete as error:  # half a summary is none, and asking again would cut it off again
            failed(memory, "local", left_out, str(error), error.usage)
            raise
        except ModelRefused as error:
            failed(memory, "local", left_out, str(error))
            if error.status not in REFUSES_CONTENT or not self._leave_media_out():
                raise
            return None
        except (ModelUnavailable, CompactionFailed) as error:
            failed(memory, "local", left_out, str(error))
            await outlast(error, self.patience, self.job.model, memory)
            return None
        from refold.core.compaction.accepting import judged

        summary = judged(output, prompt)
        if isinstance(summary, str):
            return self._accepted(summary, done, left_out)
        failed(memory, "local", left_out, summary.why, done.usage)
        await self._after(summary)
        return None

    # --- what comes next -------------------------------------------------------------------------------------------

    async def _after(self, unfit: Unfit) -> None:
        """A reply was no summary. Raises CompactionFailed when nothing is left to try."""
        self.unfit += 1
        error = CompactionFailed(unfit.why)
        waiting = self.patience.wait(error) if self.unfit <= ASKED_AGAIN else None
        if waiting is not None:
            self.job.memory.feed.publish(waiting)
            await asyncio.sleep(waiting.seconds)
        elif unfit.kind in ACTED and self.asking.budget is None:
            self.job.memory.feed.publish(Notice(f"{unfit.why}; it is asked once more, with the session as one text"))
            self.asking = local.Asking(handoff=self.asking.handoff, budget=self._budget())
            self.unfit = ASKED_AGAIN  # this rung is tried once
            self.patience.renew()
        else:
            raise error

    def _ask_for_less(self, told: int | None, prompt: Prompt) -> bool:
        """The request did not fit; `told`: the model's window. False: nothing is left to leave out."""
        self.overflows += 1
        self.patience.renew()
        tokens = prompt.tokens + sum(entry(user_message(str(tool)), "").tokens for tool in prompt.tools)
        self._learn(told, tokens)
        if self.asking.budget is not None:
            budget = min(self.asking.budget // 2, self._budget())
            self.asking = msgspec.structs.replace(self.asking, budget=budget)
            return budget >= LEAST_BUDGET
        if self.overflows > 1 and self._leave_media_out():
            return True
        over = 1
        if self.limit is not None:
            over = max(tokens - self.limit + self.limit // ANSWER_SHARE, tokens // GUESS_SHARE)
        whole = for_prompt(self.snapshot, self.job.model.profile.input_modalities)
        kept = local.without_oldest(whole, self.asking.dropped)
        if not kept:
            return False
        kept = local.without_oldest(kept, local.count_for(kept, over))
        self.asking = msgspec.structs.replace(self.asking, dropped=len(whole) - len(kept))
        return True

    def _learn(self, told: int | None, tokens: int) -> None:
        profile = self.job.model.profile
        if told is None and self.is_own and tokens > (profile.context_window or tokens):
            told = profile.context_window  # the session's limits are not this model's
        if told is None or told <= 0 or told == self.limit:
            return
        self.limit = told
        if not self.is_own and profile.context_window and told < profile.context_window:
            text = f"{profile.slug} takes {told:,} tokens, not {profile.context_window:,}"
            self.job.memory.feed.publish(Notice(f"{text}: set model_context_window = {told}"))

    def _leave_media_out(self) -> bool:
        """Whether there was an image or a sound to leave out of the next request."""
        if self.asking.without_media or self.asking.budget is not None:
            return False
        entries = local.told(self.snapshot, self.job.model.profile, self.asking)
        if not any(map(local.holds_media, entries)):
            return False
        self.asking = msgspec.structs.replace(self.asking, without_media=True)
        return True

    def _budget(self) -> int:
        """Tokens that a transcript may have."""
        window = self.limit or self.job.model.profile.context_window or FALLBACK_CONTEXT_WINDOW
        return window * TRANSCRIPT_PERCENT // 100

    # --- the end ---------------------------------------------------------------------------------------------------

    def _accepted(self, summary: str, done: Completed, left_out: int) -> Found:
        """What takes the history's place. One that is too large is recorded as such; the ladder weighs the whole."""
        from refold.core.compaction.accepting import is_larger

        job, thread = self.job, self.job.memory.thread
        size = size_of(thread, [entry(user_message(summary), "")]) - size_of(thread, [])
        replaced = size_of(thread, self.snapshot) - size_of(thread, [])  # by the rule or guessed, as its context is
        if is_larger(size, replaced):
            why = f"the summary is larger than what it replaces: {size:,} tokens for {replaced:,}"
            failed(job.memory, "local", left_out, why, done.usage)
        else:
            completed(job.memory, "local", left_out, done)
        replacement = closed_by(job, self.snapshot, summary)
        return Found(method="local", replacement=replacement, response_id=done.response_id, dropped=left_out)


def _handoff(job: Job) -> str | None:
    """The text that asks for the summary; None: the protocol's own."""
    handoff = handoff_text(job.memory.config)
    if not job.focus:
        return handoff
    return (handoff or template("handoff")) + "\n\n" + template("focus").format(focus=well_formed(job.focus))
