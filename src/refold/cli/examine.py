"""Examine: one rollout as `refold doctor ID|PATH` tells it: what it is, what was found, and how it is repaired."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.cli.style import paint
from refold.core.jsonio import dump
from refold.views.shown import one_line

if TYPE_CHECKING:
    from refold.rollout.examination import Examination, Finding, Repair

LABEL = 13  # columns before a fact
MOST_TYPES = 6  # types of records that are named
EXIT_DAMAGED = 1


def examine_rollout(reference: str, *, fix: bool, dry_run: bool, as_json: bool) -> int:
    """Tell of one rollout, and repair it if that is asked for. The exit code: 1 where damage is left.

    Raises RolloutNotFound, RolloutLocked, RolloutError.
    """
    from refold.rollout.examination import examine, plan_repair, repair
    from refold.session.clock import Clock
    from refold.session.collector import without_collector
    from refold.session.home import Home

    home = Home.find()
    path, own = home.catalogue().find(reference)
    with without_collector():
        examined = examine(path)
    if not as_json:
        _tell(examined)
    plan, done = None, False
    if fix or dry_run:
        plan = plan_repair(examined, new_id=Clock().uuid(), home=None if own else home.path)
        if not as_json:
            _tell_plan(plan, examined)
        if fix and not dry_run and plan.done:
            plan, done = repair(examined, plan), True
            if not as_json:
                _tell_done(plan)
    elif not as_json:
        _conclude(examined, reference)
    if as_json:
        print(dump(_document(examined, plan, done)).decode())
    left = [one for one in examined.findings if one.is_damage and not (done and one.about.fixed)]
    return EXIT_DAMAGED if left or (plan is not None and plan.why is not None) else 0


# --- for people ------------------------------------------------------------------------------------------------------


def _tell(examined: Examination) -> None:
    from refold.rollout.examination.identity import SAID

    print(paint(one_line(Path(examined.path).name), "bold"))
    by = f" {examined.version}" if examined.version else ""
    _fact("session", f"{examined.thread_id or 'without an id'}, {SAID[examined.generation]}{by}")
    if examined.started or examined.active.cwd:
        _fact("begun", f"{examined.started or 'at an unknown time'} in {examined.active.cwd or 'an unknown folder'}")
    kinds = sorted(examined.records.items(), key=lambda one: -one[1])
    named = ", ".join(f"{count:,} {kind}" for kind, count in kinds[:MOST_TYPES]) + (
        f" and {len(kinds) - MOST_TYPES} more types" if len(kinds) > MOST_TYPES else ""
    )
    packed = ", compressed" if examined.is_compressed else ""
    _fact("file", f"{examined.size:,} bytes{packed}, {examined.lines:,} lines" + (f": {named}" if named else ""))
    _fact("turns", _turns(examined))
    _fact("checkpoints", _checkpoints(examined))
    _fact("resumes", _resumes(examined))
    if examined.findings:
        print()
    for finding in examined.findings:
        _tell_finding(finding)


def _fact(label: str, text: str) -> None:
    print(f"  {paint(f'{label:<{LABEL}}', 'dim')}{one_line(text)}")


def _turns(examined: Examination) -> str:
    counts = [f"{count:,} {name}" for name, count in examined.turns.items() if count]
    typed = f"{examined.typed:,} {'message' if examined.typed == 1 else 'messages'} typed"
    return ", ".join([*counts, typed])


def _checkpoints(examined: Examination) -> str:
    if not examined.checkpoints:
        return "none"
    newest = examined.checkpoints[-1]
    held = "without a history" if newest.items is None else f"{newest.items:,} items"
    window = "" if newest.window is None else f", window {newest.window}"
    return f"{len(examined.checkpoints):,}, the newest at line {newest.line:,} ({held}{window})"


def _resumes(examined: Examination) -> str:
    active = examined.active
    if active.why is not None:
        return f"no: {active.why}"
    tokens = "" if active.last_tokens is None else f", {active.last_tokens:,} tokens"
    model = f", model {active.model}" if active.model else ""
    return f"yes, with {active.items:,} items{tokens}{model}"


def _tell_finding(finding: Finding) -> None:
    about = finding.about
    verdict = paint("damage", "red") if about.is_damage else paint("note", "yellow") + "  "
    detail = f": {finding.detail}" if finding.detail else ""
    print(f"{verdict}  {_where(finding)}{one_line(about.what + detail)}")
    if about.effect and about.effect != "none":
        print(paint(f"        effect: {one_line(about.effect)}", "dim"))
    if about.mend and about.is_damage:
        print(paint(f"        mends it: {one_line(about.mend)}", "dim"))


def _where(finding: Finding) -> str:
    place = finding.places[0]
    if not place.line:
        return f"{finding.count:,} times, " if finding.count > 1 else ""
    where = f"line {place.line:,}, byte {place.offset:,}"
    if finding.count == 1:
        return f"{where}: "
    more = ", ".join(f"{one.line:,}" for one in finding.places[1:])
    rest = " …" if finding.count > len(finding.places) else ""
    return f"{finding.count:,} times, first at {where}{f', then {more}{rest}' if more else ''}: "


def _conclude(examined: Examination, reference: str) -> None:
    damage = sum(one.is_damage for one in examined.findings)
    notes = len(examined.findings) - damage
    if not examined.findings:
        print(paint("\nIn order.", "green"))
        return
    counts = [f"{damage} damaged" if damage else "no damage", *([f"{notes} noted"] if notes else [])]
    way = f"; refold doctor --fix {reference} writes a repaired copy (--dry-run says first what it does)"
    can = any(one.is_damage for one in examined.fixable)
    print(paint(f"\n{', '.join(counts)}{way if can else ''}", "bold"))


def _tell_plan(plan: Repair, examined: Examination) -> None:
    from refold.rollout.examination import KINDS

    print()
    if not plan.done:
        nothing = "a repair mends none of this" if examined.is_damaged else "there is nothing to repair"
        why = nothing if examined.items or examined.checkpoints else "no item in it can be read"
        print(f"{paint('repair', 'bold')}  nothing is written: {why}")
        return
    print(f"{paint('repair', 'bold')}  of {plan.lines_before:,} lines {plan.lines_after:,} are written:")
    for kind, count in plan.done.items():
        print(f"        {count:,} × {KINDS[kind].what}")
    if plan.renumbered:
        print(f"        {plan.renumbered:,} lines get another ordinal, and with it another address")
    print(f"  to    {one_line(str(plan.target))}")
    if plan.kept == plan.source:
        print(f"  from  {one_line(str(plan.source))}, which stays as it is")
    else:
        print(f"  kept  {one_line(str(plan.kept))}: the old file, byte for byte")


def _tell_done(plan: Repair) -> None:
    if plan.why is None:
        print(paint(f"done: refold resume {one_line(str(plan.target))}", "green"))
    else:
        print(paint(f"done, but it cannot be resumed yet: {one_line(plan.why)}", "yellow"))


# --- for programs ----------------------------------------------------------------------------------------------------


def _document(examined: Examination, plan: Repair | None, done: bool) -> dict[str, Any]:
    import msgspec

    told = msgspec.to_builtins(examined)
    told["active"].pop("points")
    active = told.pop("active")
    findings = [_finding(one) for one in examined.findings]
    told = {**told, "resumes": active["why"] is None, "active": active, "damaged": examined.is_damaged}
    told["findings"] = findings
    if plan is not None:
        about = {key: str(getattr(plan, key)) for key in ("source", "target", "kept")}
        counts = {key: getattr(plan, key) for key in ("done", "renumbered", "lines_before", "lines_after")}
        told["repair"] = {**about, **counts, "written": done, "why": plan.why}
    return told


def _finding(finding: Finding) -> dict[str, Any]:
    about = finding.about
    return {
        "kind": finding.kind,
        "severity": "damage" if about.is_damage else "note",
        "what": about.what,
        "detail": finding.detail,
        "count": finding.count,
        "places": [{"line": one.line, "byte": one.offset} for one in finding.places if one.line],
        "effect": about.effect,
        "mend": about.mend,
    }
