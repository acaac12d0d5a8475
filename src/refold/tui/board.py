"""Board: what is going on right now, and the rows beside the input line that say it."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from refold.tui.cells import fitted, wrapped
from refold.tui.style import Fragment, Row

State: TypeAlias = Literal[
    "opening", "idle", "working", "waiting", "compacting", "asking", "choosing", "stopping", "leaving"
]

BAR_CELLS = 10
PROGRESS_ROWS = 4  # of what all running calls say of themselves


class Running(NamedTuple):
    """A call that is being run: what it does, since when (seconds of a clock that only grows), its newest words."""

    what: str
    began: float
    said: str = ""


class Board:
    """Mutable: whoever shows events writes it, the surface draws it."""

    def __init__(self) -> None:
        self.state: State = "opening"
        self.since = 0.0  # when the turn or the state began; seconds of a clock that only grows
        self.until = 0.0  # when the next attempt begins, while waiting
        self.hint = ""  # what a person should know about the next key
        self.model = ""
        self.used = 0  # tokens in the context
        self.window: int | None = None  # tokens
        self.limit: int | None = None  # where compaction is due
        self.total = 0  # tokens that the session has used
        self.thought = ""  # what the model reasons at the moment
        self.tail = ""  # the line of the answer that is not finished
        self.running: dict[str, Running] = {}  # by call id
        self.queued: dict[str, str] = {}  # what was said and not yet read, by item id

    @property
    def is_timed(self) -> bool:
        """Whether what it says changes as time goes by."""
        return self.state in ("working", "waiting", "compacting", "stopping")


# --- the toolbar -----------------------------------------------------------------------------------------------------


def state_words(board: Board, now: float) -> str:
    match board.state:
        case "working" | "compacting":
            return f"{board.state} {max(0, now - board.since):.0f} s"
        case "waiting":
            return f"waiting to try again in {max(0.0, board.until - now):.0f} s"
        case "asking":
            return "your answer is needed"
        case _:
            return board.state


def short(tokens: int) -> str:
    """950, 12.4k, 1.2M."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if tokens >= size:
            amount = tokens / size
            return f"{amount:.0f}{unit}" if amount >= 100 or amount == int(amount) else f"{amount:.1f}{unit}"
    return str(tokens)


def bar(used: int, window: int, limit: int | None) -> str:
    """How full the context window is, with a mark where compaction is due."""
    filled = min(BAR_CELLS, round(BAR_CELLS * used / window))
    cells = ["█"] * filled + ["░"] * (BAR_CELLS - filled)
    if limit:
        cells[min(BAR_CELLS - 1, BAR_CELLS * limit // window)] = "┃"
    return "".join(cells)


def gauge(board: Board) -> list[Fragment]:
    if not board.window:
        return [("dim", f"{short(board.used)} tokens in context")]
    share = board.used / board.window
    look = "red" if board.limit and board.used >= board.limit else "yellow" if share > 0.6 else "green"
    text = f" {short(board.used)}/{short(board.window)} ({share:.0%})"
    return [(look, bar(board.used, board.window, board.limit)), ("dim", text)]


def toolbar(board: Board, now: float, width: int) -> list[Fragment]:
    """One row: what goes on, the gauge, the model, the tokens; of a narrow terminal's, the first that fit."""
    look = "dim" if board.state == "idle" else "yellow"
    pieces = [[(look, state_words(board, now))]]
    if board.hint:
        pieces.append([("yellow", board.hint)])
    if board.model:
        pieces += [gauge(board), [("dim", board.model)], [("dim", f"{short(board.total)} tokens used")]]
    row: list[Fragment] = []
    for piece in pieces:
        longer = [*row, ("dim", " · "), *piece] if row else piece
        if sum(len(text) for _, text in longer) > width - 1:
            break
        row = longer
    return row or [(look, fitted(state_words(board, now), width - 1))]


# --- above the input line --------------------------------------------------------------------------------------------


def live_rows(board: Board, now: float, width: int, most: int) -> list[Row]:
    """What is not finished: thought, the answer's last line, running calls, queued messages; at most `most` rows."""
    rows: list[Row] = []
    if board.thought:
        rows.append([("dim", fitted("∴ " + _newest_line(board.thought), width))])
    rows += [[("", text)] for text in wrapped(board.tail, width)] if board.tail else []
    rows += _running_rows(board, now, width)
    rows += [[("dim", fitted(f"⋯ queued: {' '.join(text.split())}", width))] for text in board.queued.values()]
    return rows[-most:] if most > 0 else []


def _running_rows(board: Board, now: float, width: int) -> list[Row]:
    rows: list[Row] = []
    several = len(board.running) > 1
    for one in board.running.values():
        lines = [line for line in one.said.splitlines() if line.strip()]
        rows += [
            [("dim", fitted("    " + line, width))] for line in lines[-max(1, PROGRESS_ROWS // len(board.running)) :]
        ]
        seconds = now - one.began
        if several or seconds >= 1 or lines:
            rows.append([("dim", fitted(f"  … {seconds:.0f} s{'  ' + one.what if several else ''}", width))])
    return rows


def _newest_line(text: str) -> str:
    return next((line.strip(" *") for line in reversed(text.splitlines()) if line.strip(" *")), "")
