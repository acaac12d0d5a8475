"""Every exception of refold, one hierarchy, named by who must act."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class RefoldError(Exception):
    """What every refold exception is; its text is one line that names the thing and the number."""


class UnusableItem(RefoldError, ValueError):
    """What was given cannot be kept as JSON; nothing of it was written."""


# --- the model or its provider must answer better -------------------------------------------------


class ModelError(RefoldError):
    """A sampling request did not give a usable response."""


class ModelUnavailable(ModelError):
    """The provider cannot answer now; asking again may help.

    `retry_after` is the wait in seconds that the provider asked for, or None.
    `request_level` is true when the request was refused before a stream began.
    `retryable` is false when waiting a little cannot help (a quota that resets in hours).
    `reached` is false when nobody answered at that address at all.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        status: int | None = None,
        request_level: bool = False,
        retryable: bool = True,
        reached: bool = True,
    ) -> None:
        super().__init__(message)
        self.reached = reached
        self.retry_after = retry_after
        self.status = status
        self.request_level = request_level
        self.retryable = retryable


class BadModelStream(ModelUnavailable):
    """The event stream broke, stalled or ended without `response.completed`; asking again may help."""


class ContextWindowExceeded(ModelError):
    """The input does not fit; `limit` is the model's true context window in tokens when the provider told it."""

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit


class ModelRefused(ModelError):
    """The provider refused the request as it is; the same request will be refused again."""

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class ResponseIncomplete(ModelError):
    """The response ended in order but unfinished (`max_output_tokens`, `content_filter`, …); not retried.

    `usage` is what it cost all the same (a core.usage.Usage), or None when the provider did not say.
    """

    def __init__(self, reason: str, *, usage: Any = None) -> None:
        super().__init__(f"Incomplete response returned, reason: {reason}")
        self.reason = reason
        self.usage = usage


# --- compaction ------------------------------------------------------------------------------------


class CompactionFailed(RefoldError):
    """No method gave a usable replacement; the thread is untouched."""


class CompactionBlocked(CompactionFailed):
    """A hook said no; the thread is untouched."""


class CompactionMadeNoRoom(CompactionFailed):
    """A compaction succeeded, but the context is still at the limit, and the provider takes no more (tokens)."""

    def __init__(self, before: int, after: int, limit: int) -> None:
        super().__init__(f"compaction made no room: {before:,} tokens before, {after:,} after, the limit is {limit:,}")
        self.before = before
        self.after = after
        self.limit = limit


# --- a tool must be called differently --------------------------------------------------------------


class ToolFailed(RefoldError):
    """A tool could not do what was asked; its text becomes the output that the model reads."""


# --- the file must be looked at ----------------------------------------------------------------------


class RolloutError(RefoldError):
    """A rollout could not be read or written."""


class RolloutNotFound(RolloutError):
    """No rollout has this id or path."""


class RolloutCorrupt(RolloutError):
    """A rollout cannot be understood; `line` counts from 1, None when the whole file is meant."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class RolloutLocked(RolloutError):
    """Another process writes this session; `owner` is its process id when it is known."""

    def __init__(self, message: str, *, owner: int | None = None) -> None:
        super().__init__(message)
        self.owner = owner


class RolloutUnwritten(RolloutError):
    """A session was closed and its log is not wholly on its disk: so many records, in the file `rescued`, or lost."""

    def __init__(self, message: str, *, records: int, rescued: Path | None) -> None:
        super().__init__(message)
        self.records = records
        self.rescued = rescued


# --- the user's settings must change -----------------------------------------------------------------


class ConfigError(RefoldError):
    """A setting is wrong: `key` names it, `why` says what to do."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key
        self.why = why


# --- the caller must wait or stop ----------------------------------------------------------------------


class BudgetExhausted(RefoldError):
    """A limit that was set is used up: `what`, and how much of how much. The turn ended there; its log is whole."""

    def __init__(self, what: str, used: float, limit: float) -> None:
        super().__init__(f"{what}: {used:,.6g} of {limit:,.6g} used; raise the limit to go on")
        self.what, self.used, self.limit = what, used, limit


class RequestRefused(RefoldError):
    """A client of the gateway asked for what cannot be done. `status` is the HTTP answer's; `code`, `kind` and `param`
    are the fields of the API's error object, `told` is that object where the upstream made it; `retry_after`: seconds.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        kind: str = "invalid_request_error",
        param: str | None = None,
        retry_after: float | None = None,
        told: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.kind, self.param = status, code, kind, param
        self.retry_after, self.told = retry_after, told


class TurnRefused(RefoldError):
    """A hook did not let a message begin a turn; nothing was recorded."""


class SessionBusy(RefoldError):
    """A turn is running; steer it, interrupt it, or wait for it."""


class SessionClosed(RefoldError):
    """The session was closed; resume it to go on."""
