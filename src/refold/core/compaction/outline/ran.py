"""Ran: the commands that were run, the files they wrote, and what failed, read back from the newest call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from refold.core.compaction.outline.calls import Asked, Ended, asked, ended
from refold.core.compaction.outline.fact import Fact, Found
from refold.core.history import Entry

ERROR_LINES = 3  # of a failed output, the last ones: what went wrong stands there
READ_CALLS = 1_000  # the newest ones, ten times what a page shows: a huge history costs no more to read


class _Runs:
    """One command: its newest run, how that ended, how often it ran. Mutable: older runs are met later."""

    __slots__ = ("address", "asked", "count", "ended")

    def __init__(self, address: str, asked: Asked, ended: Ended | None) -> None:
        self.address, self.asked, self.ended, self.count = address, asked, ended, 1


class CallFacts:
    """Facts from calls (oldest first) and the outputs by their call's place. Mutable while it reads, in `__init__`."""

    def __init__(self, calls: Sequence[Entry], answers: Mapping[int, Entry], enough: int) -> None:
        self._enough = enough
        self._runs: dict[tuple[str, ...], _Runs] = {}
        self._files: dict[str, Fact] = {}
        self._errors: list[Fact] = []
        self._settled: set[tuple[str, ...]] = set()  # calls that were made again later
        self._looked: set[tuple[str, ...]] = set()  # whose paths are known
        self._later: dict[str, tuple[Ended, str]] = {}  # session id → how its process ended, and where that is told
        place = len(calls)
        while place and len(calls) - place < READ_CALLS and not self._is_enough():
            place -= 1
            self._read(calls[place], answers.get(place))
        self._unread = place > 0
        self.waiting = _waiting(calls, answers)

    @property
    def files(self) -> Found:
        """Files by their newest write, newest first; a patch that failed wrote nothing."""
        return Found(list(self._files.values()), self._unread or len(self._files) >= self._enough)

    @property
    def errors(self) -> Found:
        """The last lines of what failed, newest first; not where the same call went well later."""
        return Found(self._errors, self._unread)

    @property
    def commands(self) -> Found:
        """Commands by their newest run, newest first, with how it ended and how often they ran."""
        home = next((runs.asked.where for runs in self._runs.values() if runs.asked.where), "")
        facts = [_command(runs, home) for runs in self._runs.values()]
        return Found(facts, self._unread or len(facts) >= self._enough)

    def _is_enough(self) -> bool:
        enough = self._enough
        return len(self._runs) >= enough and len(self._files) >= enough and len(self._errors) >= enough

    def _read(self, call: Entry, answer: Entry | None) -> None:
        how = None if answer is None else ended(answer.item)
        for one in asked(call.item):
            self._read_one(one, call.address, how, "" if answer is None else answer.address)

    def _read_one(self, one: Asked, address: str, how: Ended | None, told_at: str) -> None:
        if one.session and how is not None:
            if how.code is not None or how.failed:
                self._later.setdefault(one.session, (how, told_at))
            return  # it only waited: how the command ended is told once, there
        if how is not None and how.session and how.session in self._later:
            how, told_at = self._later.pop(how.session)
        key = one.key
        if one.is_command:
            self._ran(one, key, address, how)
        if how is not None and not how.session:
            if how.failed and key not in self._settled and len(self._errors) < self._enough:
                self._errors.append(_error(one, how, told_at))
            self._settled.add(key)
        failed_patch = bool(one.patch) and how is not None and how.failed
        if (one.is_command or one.patch) and not failed_patch and key not in self._looked:
            self._looked.add(key)
            self._wrote(one, address)

    def _ran(self, one: Asked, key: tuple[str, ...], address: str, how: Ended | None) -> None:
        runs = self._runs.get(key)
        if runs is not None:
            runs.count += 1
        elif len(self._runs) < self._enough:
            self._runs[key] = _Runs(address, one, how)

    def _wrote(self, one: Asked, address: str) -> None:
        if len(self._files) < self._enough:
            for path, how in one.writes():
                if path not in self._files:
                    self._files[path] = Fact(address, path, f" ({how})")


def _command(runs: _Runs, home: str) -> Fact:
    one, how = runs.asked, runs.ended
    ending = f" -> {'no output' if how is None else how.state}"  # first: what is cut is cut in its middle
    ending += f" (x{runs.count})" if runs.count > 1 else ""
    ending += f" (in {one.where})" if one.where not in ("", home) else ""
    if how is not None and how.failed:
        ending += "".join(f"; last line: {line}" for line in how.last_lines(1))
    return Fact(runs.address, one.text, ending)


def _error(one: Asked, how: Ended, told_at: str) -> Fact:
    what = " / ".join(how.last_lines(ERROR_LINES))
    return Fact(told_at, one.text, f" -> {how.state}: {what}" if what else f" -> {how.state}")


def _waiting(calls: Sequence[Entry], answers: Mapping[int, Entry]) -> list[Fact]:
    """The newest call that has no output."""
    for place in range(len(calls) - 1, -1, -1):
        if place not in answers:
            return [
                Fact(calls[place].address, f"called: {one.text}", " (no output)") for one in asked(calls[place].item)
            ]
    return []
