"""Long logs: a session's file of 10 MB to 1 GB, as the real program writes one, opened by it and by refold.

Each figure is of processes of their own: from their start to the first request at the scripted provider. What is
opened without a checkpoint goes out whole: no context window is that large, but it is what both have to read.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.core import Figure
from bench.measure import Arrivals
from bench.peers import Codex, History, Peer, Refold

MEGABYTE = 1_000_000
SIZES = (10, 200, 1_000)  # MB
ROUNDS = {10: 3, 200: 2, 1_000: 1}  # of the real program, which takes a minute for the largest
OURS_ROUNDS = 5
KEPT = 900_000  # bytes of the history that a late checkpoint holds
AFTER = 50  # calls behind it
MORE_MS = 150  # a resume may take so much longer than a new session
MOST_MIB = 60
A_FIFTH = 0.2
PEER = "the real program, first time"
SESSION = "0194a2f0-0000-7000-8000-00000000000a"
WINDOW = "0194a2f0-0000-7000-8000-00000000000b"
STAMP = "2026-11-30T11:32:20.810Z"
TEXT = 'a line that a command printed: path/to/a/file.py:42: "quoted", and then some more words of it\n' * 12
USED = {"input_tokens": 1_000, "cached_input_tokens": 0, "output_tokens": 10, "reasoning_output_tokens": 0}
USAGE = {**USED, "total_tokens": 1_010}


def rows() -> Iterator[Figure]:
    arrivals = Arrivals()
    with tempfile.TemporaryDirectory() as name, arrivals.server:
        folder = Path(name)
        ours = min(arrivals.first(Refold(), folder) for _ in range(OURS_ROUNDS))
        theirs = min(_first(arrivals, Codex(), folder) for _ in range(OURS_ROUNDS)) if Codex().installed() else None
        yield Figure("a new session: start to first request", "ms", ours, PEER, theirs)
        for size in SIZES:
            for late in (True, False):
                yield from _opened(arrivals, folder / f"{size}{late}", size, (ours, theirs), late=late)


def _opened(
    arrivals: Arrivals, folder: Path, size: int, new: tuple[float, float | None], *, late: bool
) -> Iterator[Figure]:
    """What a start takes with this file to open; and how much of that a new session does not."""
    history = _written(folder, size * MEGABYTE, late=late)
    what = f"{size:,} MB, {'a late' if late else 'no'} checkpoint"
    ours = min(arrivals.first(Refold(), folder, history) for _ in range(OURS_ROUNDS if late else 2))
    theirs = None
    if new[1] is not None:
        theirs = min(_first(arrivals, Codex(), folder, history) for _ in range(ROUNDS[size]))
    yield Figure(f"{what}: start to first request", "ms", ours, PEER, theirs)
    more = None if theirs is None or new[1] is None else theirs - new[1]
    most = MORE_MS if late else None if more is None else A_FIFTH * more
    yield Figure("more than a new session", "ms", ours - new[0], PEER, more, most=most)
    if late:
        yield Figure("peak memory", "MiB", arrivals.peak(Refold(), folder, history), most=MOST_MIB)
    history.rollout.unlink()


def _first(arrivals: Arrivals, peer: Peer, folder: Path, history: History | None = None) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as once:
        return arrivals.first(peer, Path(once), history)


# --- the files -------------------------------------------------------------------------------------------------------


def _written(folder: Path, size: int, *, late: bool) -> History:
    place = folder / "home" / "sessions" / "2026" / "11" / "30"
    place.mkdir(parents=True)
    path = place / f"rollout-2026-11-30T11-32-20-{SESSION}.jsonl"
    write(path, size, late=late)
    return History(folder / "home", SESSION, path, path)


def write(path: Path, size: int, *, late: bool) -> None:
    """A session of about so many bytes, as the real program writes one; its checkpoint stands near the end."""
    with path.open("wb") as file:
        for ordinal, body in enumerate(_bodies(size, late=late)):
            stamped = {"timestamp": STAMP, "ordinal": ordinal, **body}
            file.write(json.dumps(stamped, separators=(",", ":")).encode() + b"\n")


def _bodies(size: int, *, late: bool) -> Iterator[dict[str, Any]]:
    yield _line("session_meta", _META)
    calls = size // (2 * len(TEXT) + 2_300)
    for number in range(calls):
        if number % 20 == 0:
            yield from _begun(f"turn-{number // 20}", f"request {number}")
        yield from _call(f"turn-{number // 20}", number)
        if number % 20 == 19:
            yield from _ended(f"turn-{number // 20}")
    if late:
        yield from _compacted("turn-compaction")
        yield from _begun("turn-after", "go on")
        for number in range(calls, calls + AFTER):
            yield from _call("turn-after", number)
        yield from _ended("turn-after")


_META = {
    "session_id": SESSION,
    "id": SESSION,
    "timestamp": STAMP,
    "cwd": "/tmp",
    "originator": "codex_exec",
    "cli_version": "0.171.0",
    "source": "exec",
    "thread_source": "user",
    "model_provider": "scripted",
    "base_instructions": {"text": "Be brief."},
    "history_mode": "paginated",
    "context_window": {"window_id": WINDOW},
}
_SETTINGS = {
    "cwd": "/tmp",
    "approval_policy": "never",
    "approvals_reviewer": "user",
    "sandbox_policy": {"type": "danger-full-access"},
    "model": "interop",
    "summary": "none",
}


def _begun(turn: str, said: str) -> Iterator[dict[str, Any]]:
    yield _event("task_started", turn_id=turn, started_at=0, model_context_window=258_400)
    yield _line("turn_context", {"turn_id": turn, **_SETTINGS})
    yield _line("response_item", _said(said, f"msg_{turn}", turn))
    yield _event("item_completed", thread_id=SESSION, turn_id=turn, item=_mirror(said, turn), **_TIMES)


def _call(turn: str, number: int) -> Iterator[dict[str, Any]]:
    call_id, command = f"call_{number}", f"sed -n {number}p file"
    arguments = json.dumps({"cmd": command})
    passthrough = {"internal_chat_message_metadata_passthrough": {"turn_id": turn}}
    call = {"type": "function_call", "id": f"fc_{number}", "name": "exec_command", "arguments": arguments}
    yield _line("response_item", {**call, "call_id": call_id, **passthrough})
    counted = {"usage": USAGE, "turn_token_usage": USAGE, "thread_token_usage": USAGE}
    yield _line("token_usage_record", {"thread_id": SESSION, "turn_id": turn, "response_id": "resp_1", **counted})
    done = {"type": "CommandExecution", "id": call_id, "command": ["/bin/bash", "-lc", command], "cwd": "file:///tmp"}
    more = {"source": "unified_exec_startup", "status": "completed", "aggregated_output": TEXT, "exit_code": 0}
    taken = {"parsed_cmd": [], "duration": {"secs": 0, "nanos": 0}}
    yield _event("item_completed", thread_id=SESSION, turn_id=turn, item={**done, **more, **taken}, **_TIMES)
    output = {"type": "function_call_output", "id": f"fco_{number}", "call_id": call_id, "output": TEXT}
    yield _line("response_item", {**output, **passthrough})
    yield _counted()


def _ended(turn: str) -> Iterator[dict[str, Any]]:
    content = [{"type": "output_text", "text": f"answer of {turn}"}]
    yield _line("response_item", {"type": "message", "id": f"msg_a{turn}", "role": "assistant", "content": content})
    yield _event("task_complete", turn_id=turn, last_agent_message=f"answer of {turn}")


def _compacted(turn: str) -> Iterator[dict[str, Any]]:
    yield _event("task_started", turn_id=turn, started_at=0, model_context_window=258_400)
    history = [_said(TEXT, f"msg_k{number}", turn) for number in range(KEPT // (len(TEXT) + 200))]
    window = {"window_number": 1, "window_id": WINDOW, "first_window_id": WINDOW, "previous_window_id": WINDOW}
    counted = {"usage": USAGE, "turn_token_usage": USAGE, "thread_token_usage": USAGE}
    spent = {"thread_id": SESSION, "turn_id": turn, "session_id": SESSION, "response_id": "resp_1", **counted}
    known = {"last_started_turn_id": turn, "previous_turn_settings": {"model": "interop", "realtime_active": False}}
    made = {"compaction_response_id": "resp_1", "latest_token_usage_record": spent, "resume_metadata": known}
    yield _line("compacted", {"message": "what was done", "replacement_history": history, **window, **made})
    yield _line("turn_context", {"turn_id": turn, **_SETTINGS})
    yield _counted()
    yield _event("task_complete", turn_id=turn, last_agent_message=None)


_TIMES = {"started_at_ms": 0, "completed_at_ms": 0}


def _counted() -> dict[str, Any]:
    info = {"total_token_usage": USAGE, "last_token_usage": USAGE, "model_context_window": 258_400}
    return _event("token_count", info=info)


def _mirror(said: str, turn: str) -> dict[str, Any]:
    return {"type": "UserMessage", "id": f"m-{turn}", "content": [{"type": "text", "text": said, "text_elements": []}]}


def _said(text: str, item_id: str, turn: str) -> dict[str, Any]:
    kinds = {"turn_id": turn, "content_item_kinds": ["user.text"]}
    content = [{"type": "input_text", "text": text}]
    passed = {"internal_chat_message_metadata_passthrough": kinds}
    return {"type": "message", "id": item_id, "role": "user", "content": content, **passed}


def _line(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "payload": payload}


def _event(kind: str, **told: Any) -> dict[str, Any]:
    return _line("event_msg", {"type": kind, **told})
