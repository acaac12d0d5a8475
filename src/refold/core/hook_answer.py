"""Hook answer: what the end of a hook's command says: go on, go on with other arguments, no, or that it failed."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from refold.core.jsonio import JSON, is_object, load
from refold.core.truncate import Budget, cut_middle

HookEvent: TypeAlias = Literal["PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop", "PreCompact", "PostCompact"]

REFUSED = 2  # the exit code that says no; its reason is on stderr
NOT_STARTED = (126, 127)  # a shell's exit codes for what may not be run, or is not there
REASON = Budget("bytes", 8_192)  # a reason, not a report
NO_REASON = "it gave no reason"
_TEXTS: dict[str, str] = {"PreCompact": "additionalContext", "PostCompact": "updatedSummary"}  # where the text stands


class HookEnded(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. `unable`: why it could not do its work at all; empty when it ended by itself."""

    exit_code: int = 0  # negative: minus the number of the signal that ended it
    out: str = ""
    err: str = ""
    cut: bool = False  # it said more on stdout than `out` has
    unable: str = ""


class HookAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What it says.

    `refused`: why not, in its words. `updated`: the arguments to run the call with. `text`: what a summary should keep,
    or the summary to take. `trouble`: what a person should know. `decided` false: it could not look, so that what it
    guards must not go on.
    """

    refused: str | None = None
    updated: JSON | None = None
    text: str = ""
    trouble: str = ""
    decided: bool = True


def answer_of(ended: HookEnded, event: HookEvent) -> HookAnswer:
    """Read a command's end: exit code 0 and JSON on stdout, 2 and a reason on stderr, or something that went wrong."""
    code, complaint = ended.exit_code, _reason(ended.err)
    if ended.unable:
        return HookAnswer(trouble=ended.unable, decided=False)
    if code < 0:
        return HookAnswer(trouble=f"was ended by signal {-code}", decided=False)
    if code in NOT_STARTED:
        return HookAnswer(trouble=f"could not be started: {complaint or f'exit code {code}'}", decided=False)
    if code == REFUSED:
        return HookAnswer(refused=complaint or NO_REASON)
    if code:
        return HookAnswer(trouble=f"failed with exit code {code}" + (f": {complaint}" if complaint else ""))
    if ended.cut and ended.out.lstrip().startswith("{"):  # a decision, most likely, and its end is missing
        return HookAnswer(trouble="said more on stdout than is read", decided=False)
    return _said(ended.out, event)


def _said(out: str, event: HookEvent) -> HookAnswer:
    """What stands on stdout; anything but an object with words that are known here says nothing."""
    try:
        value, _ = load(out.encode("utf-8", "replace"))
    except ValueError:
        return HookAnswer()
    if not is_object(value):
        return HookAnswer()
    if value.get("decision") == "block":
        return HookAnswer(refused=_reason(value.get("reason")) or NO_REASON)
    specific = value.get("hookSpecificOutput")
    if not is_object(specific):
        return HookAnswer()
    if event in _TEXTS:
        text = specific.get(_TEXTS[event])
        return HookAnswer(text=text.strip() if isinstance(text, str) else "")
    return _decided(specific) if event == "PreToolUse" else HookAnswer()


def _decided(specific: JSON) -> HookAnswer:
    decision, updated = specific.get("permissionDecision"), specific.get("updatedInput")
    if decision == "deny":
        return HookAnswer(refused=_reason(specific.get("permissionDecisionReason")) or NO_REASON)
    if updated is not None and not is_object(updated):
        return HookAnswer(trouble="its updatedInput is no object", decided=False)
    if decision not in (None, "allow"):  # "ask": whom, is not for a hook to say
        return HookAnswer(trouble=f"its permissionDecision {decision!r} is not one that refold knows", decided=False)
    return HookAnswer(updated=updated)


def _reason(value: object) -> str:
    return cut_middle(value.strip(), REASON) if isinstance(value, str) else ""
