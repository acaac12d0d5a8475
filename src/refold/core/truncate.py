"""Truncate: a budget in bytes or tokens, the middle cut, and the shape of command output (spec §2, oracle §3)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile
from typing import Literal

import msgspec

from refold.core.items import Part

BYTES_PER_TOKEN = 4  # the approximation that every limit of the protocol is stated in
RECORDING_PERCENT = 120  # room for the header and the marker, so that recording does not cut a cut text again
DEFAULT_OUTPUT_TOKENS = 10_000  # what a call gets that does not say `max_output_tokens`
PIECE = 16_384  # characters that are encoded at once to count bytes: small enough for the processor's cache

TEXT_TYPES = frozenset({"input_text", "output_text", "text"})
AUDIO_TYPES = frozenset({"input_audio"})


class Budget(msgspec.Struct, frozen=True):
    """How much something may use: `limit` bytes, or tokens of four bytes each."""

    mode: Literal["bytes", "tokens"]
    limit: int

    @property
    def bytes(self) -> int:
        return self.limit * BYTES_PER_TOKEN if self.mode == "tokens" else self.limit

    @property
    def tokens(self) -> int:
        return self.limit if self.mode == "tokens" else tokens_for(self.limit)


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a command's output: `omitted` bytes are missing between `head` and `tail` (oracle §3 rule 1).

    `total_bytes` and `lines` describe the whole output. A line ends with `\\n`; a last one without it counts too.
    """

    head: bytes
    tail: bytes = b""
    omitted: int = 0
    total_bytes: int
    lines: int

    @property
    def omission(self) -> str:
        """The line that stands for the missing bytes; empty when none are missing."""
        return f"... {self.omitted} bytes omitted ..." if self.omitted else ""

    def text(self) -> str:
        """The output as text, invalid UTF-8 as U+FFFD, the omission on a line of its own."""
        if not self.omitted:
            return (self.head + self.tail).decode("utf-8", "replace")
        head, tail = self.head.decode("utf-8", "replace"), self.tail.decode("utf-8", "replace")
        return f"{head}\n{self.omission}\n{tail}"


# --- sizes and budgets ---------------------------------------------------------------------------------


def tokens_for(byte_count: int) -> int:
    """Approximate tokens of that many UTF-8 bytes: ceil(bytes / 4), never negative."""
    return max(0, (byte_count + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN)


def policy_with_limit(policy: Budget, tool_output_token_limit: int | None) -> Budget:
    """The model's policy with the configured limit (tokens) in place of its own, in its own unit (spec §2.1)."""
    if tool_output_token_limit is None:
        return policy
    configured = Budget("tokens", tool_output_token_limit)
    return configured if policy.mode == "tokens" else Budget("bytes", configured.bytes)


def recording_budget(policy: Budget) -> Budget:
    """What an output may use in the history: the policy × 1.2, rounded up in its own unit (spec §2.4)."""
    return Budget(policy.mode, (policy.limit * RECORDING_PERCENT + 99) // 100)


def output_budget(policy: Budget, max_output_tokens: int | None) -> Budget:
    """What the body of a command's output may use: the smaller of policy and request (oracle §3 rule 2)."""
    asked = Budget("tokens", DEFAULT_OUTPUT_TOKENS if max_output_tokens is None else max_output_tokens)
    return asked if asked.bytes < policy.bytes else policy


def well_formed(text: str) -> str:
    """The text with surrogate pairs joined and each lone surrogate as U+FFFD, so that it encodes as UTF-8."""
    return _measured(text)[0]


def _measured(text: str) -> tuple[str, int]:
    """The text in well-formed Unicode, and its length in UTF-8: counted without a copy of the whole text."""
    try:
        return text, _byte_count(text)
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text, _byte_count(text)


def _byte_count(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(len(text[start : start + PIECE].encode()) for start in range(0, len(text), PIECE))


# --- one text ------------------------------------------------------------------------------------------


def cut_middle(text: str, budget: Budget) -> str:
    """The text, or its two ends around a marker when it is over the budget (spec §2.2).

    Whole characters only; the kept ends are within the budget and the marker comes on top of it.
    """
    text, size = _measured(text)
    return text if size <= budget.bytes else _cut(text, size, budget)


def format_cut(text: str, budget: Budget) -> str:
    """Like `cut_middle`, under a header that tells the original tokens and lines when it was cut (spec §2.3)."""
    text, size = _measured(text)
    return text if size <= budget.bytes else _headed_cut(text, size, budget)


def _headed_cut(text: str, size: int, budget: Budget) -> str:
    return _warning(size, f"Total output lines: {_line_count(text)}") + _cut(text, size, budget)


def _warning(byte_count: int, second_line: str) -> str:
    return f"Warning: truncated output (original token count: {tokens_for(byte_count)})\n{second_line}\n\n"


def _line_count(text: str) -> int:
    return text.count("\n") + (1 if text and not text.endswith("\n") else 0)


def _cut(text: str, size: int, budget: Budget) -> str:
    """The two ends of a text of `size` bytes, which is more than the budget; the tail's half has the odd byte."""
    left = budget.bytes // 2
    head, tail = _first(text, left), _last(text, budget.bytes - left)
    if budget.mode == "tokens":
        # Counted from the budget, not from what whole characters made of it: so does the real program.
        return f"{head}…{tokens_for(size - budget.bytes)} tokens truncated…{tail}"
    return f"{head}…{len(text) - len(head) - len(tail)} chars truncated…{tail}"


def _first(text: str, keep: int) -> str:
    """The first whole characters that fit into `keep` bytes. No character is less than a byte, so few are encoded."""
    return text[:keep].encode()[:keep].decode("utf-8", "ignore")


def _last(text: str, keep: int) -> str:
    """The last whole characters that fit into `keep` bytes."""
    raw = text[max(0, len(text) - keep) :].encode()
    return raw[max(0, len(raw) - keep) :].decode("utf-8", "ignore")


# --- a list of parts ------------------------------------------------------------------------------------


def cut_parts(parts: Sequence[Part], budget: Budget) -> list[Part]:
    """The parts of a list output within the budget; what had to go is counted at the end (spec §2.5).

    Texts use the budget in order; audio is kept when it fits; images, encrypted and unknown parts are free.
    """
    kept: list[Part] = []
    remaining = budget.limit
    omitted = {"text": 0, "audio": 0}
    for part in parts:
        if _is_text(part):
            text, cost = _fitted(part["text"], Budget(budget.mode, remaining))
            remaining -= cost
            if text is None:
                omitted["text"] += 1
            else:
                kept.append(part if text is part["text"] else {**part, "text": text})
        elif _is_of(part, AUDIO_TYPES):
            cost = _audio_cost(part, budget)
            if cost > remaining:
                omitted["audio"] += 1
            else:
                remaining -= cost
                kept.append(part)
        else:
            kept.append(part)
    notes = (f"[omitted {count} {noun} items ...]" for noun, count in omitted.items() if count)
    return [*kept, *({"type": "input_text", "text": note} for note in notes)]


def format_cut_parts(parts: Sequence[Part], budget: Budget) -> list[Part]:
    """The parts, or one headed cut of all their text before the parts that are not text (spec §2.6)."""
    texts = (part["text"] for part in parts if _is_text(part))
    joined = "\n".join(dropwhile(lambda text: not text, texts))
    joined, size = _measured(joined)
    if size <= budget.bytes:
        return [{**part, "text": well_formed(part["text"])} if _is_text(part) else part for part in parts]
    shaped = _headed_cut(joined, size, budget)
    return [{"type": "input_text", "text": shaped}, *(part for part in parts if not _is_text(part))]


def _is_text(part: Part) -> bool:
    return _is_of(part, TEXT_TYPES) and isinstance(part.get("text"), str)


def _is_of(part: Part, types: frozenset[str]) -> bool:
    kind = part.get("type")
    return isinstance(kind, str) and kind in types


def _fitted(text: str, remaining: Budget) -> tuple[str | None, int]:
    """What is kept of a text (None: nothing) and what that uses of the remaining budget."""
    if remaining.limit <= 0:
        return None, 0
    text, size = _measured(text)
    cost = tokens_for(size) if remaining.mode == "tokens" else size
    if cost <= remaining.limit:
        return text, cost
    return _cut(text, size, remaining), remaining.limit


def _audio_cost(part: Part, budget: Budget) -> int:
    """What an audio part uses: its URL or data at four bytes a token; its duration is not looked at (spec §1.2)."""
    match part:
        case {"audio_url": str(source)} | {"input_audio": {"data": str(source)}}:
            length = len(source)
        case _:
            length = 0
    tokens = Budget("tokens", tokens_for(length))
    return tokens.limit if budget.mode == "tokens" else tokens.bytes


# --- the output of a command -----------------------------------------------------------------------------


def exec_output(
    captured: Captured,
    policy: Budget,
    *,
    chunk_id: str,
    wall_seconds: float,
    exit_code: int | None = None,
    session_id: int | None = None,
    max_output_tokens: int | None = None,
    note: str = "",
) -> str:
    """The text that a command's output reaches the model as (oracle §3).

    `policy` is the model's, after `policy_with_limit`. A process has an exit code or, while it runs, a session id.
    `note` is one line of ours that stands before the body and is cut only when the header is.
    The text needs no further cut: it is within `recording_budget(policy)`, or was already cut to it, header and all.
    """
    state = f"running with session ID {session_id}" if exit_code is None else f"exited with code {exit_code}"
    header = (
        f"Chunk ID: {chunk_id}\nWall time: {wall_seconds:.4f} seconds\nProcess {state}\n"
        f"Original token count: {tokens_for(captured.total_bytes)}\nOutput:\n{note}"
    )
    text = captured.text()
    size = _byte_count(text)
    allowed = recording_budget(policy)
    limit = output_budget(policy, max_output_tokens)
    while True:
        shaped = header + _exec_body(text, size, captured, limit)
        excess = _byte_count(shaped) - allowed.bytes
        if excess <= 0:
            return shaped
        if limit.limit <= 0:
            # Not even the header fits: the last cut takes it in too, and is always stated in tokens (rule 6).
            return cut_middle(shaped, Budget("tokens", allowed.tokens))
        less = tokens_for(excess) if limit.mode == "tokens" else excess
        limit = Budget(limit.mode, max(0, limit.limit - less))


def _exec_body(text: str, size: int, captured: Captured, limit: Budget) -> str:
    if size <= limit.bytes:
        return text
    second_line = captured.omission or f"Total output lines: {captured.lines}"
    return _warning(captured.total_bytes, second_line) + _cut(text, size, limit)
