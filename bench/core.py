"""Core: what the pure functions cost on large inputs, beside the plain way or the nearest function of another library.

`python -m bench.core` prints the table. Each figure is the lowest of the rounds; a ratio below 1 says that refold needs
less. The other libraries run in their own interpreter, where `make peers` put them; else their cells are empty.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.peers import LIBRARIES
from refold.core.compaction.replacement import retained_user_messages
from refold.core.history import Entry, cut_output, drop_oldest, entry
from refold.core.items import function_call_output, message
from refold.core.profile import Profile, Provider
from refold.core.prompt import Projection, prompt_from
from refold.core.tokens import estimate
from refold.core.truncate import Budget, cut_middle, exec_output, format_cut
from refold.core.wire import Identity, Wire
from refold.tools.collector import Collector

ROUNDS = 7
PROFILE, PROVIDER, IDENTITY = Profile(slug="bench"), Provider(), Identity(thread_id="bench")
POLICY = Budget("tokens", 2_500)
SAMPLE_BYTES = 200_000_000  # of text; figures are stated for a gigabyte
GIGABYTE = 1_000_000_000
STREAM_BYTES = 2 * GIGABYTE  # ten would say the same and take five times as long
READ_BYTES = 65_536  # what one read of a pipe gives
LINES = {
    "ASCII": "unit 0001 ok: widget suite, step 3, elapsed 42 ms\n",
    "one character in 23 beyond ASCII": "unit 0001 ok: größe, elapsed 42 ms, naïve\n" + "unit 0002 ok: 42 ms elapsed\n",
    "one in 8, CJK and emoji too": "unit 0001 ok: größe 漢字 😀, elapsed 42 ms naïve\n",
}
ENCODER = 0.9  # of the time of Python's own encoder, which has to see each character beyond ASCII (decisions/0019)
KEPT_TOKENS = 100_000  # of the 1.1 million of a history of 10,000 items
OUTPUT_BYTES = 1_650  # of each of its 2,500 outputs
LIMITED_CHARS, PREVIEW_CHARS = 500, 200  # the Agents SDK's own defaults


class Figure(msgspec.Struct, frozen=True):
    """One figure of refold's, the same of a peer where there is one, and the most that ours should be. `or_times`:
    where the machine's own part is larger, so many times the peer's will do instead (docs/decisions/0019)."""

    what: str
    unit: str
    ours: float
    peer: str = ""
    theirs: float | None = None
    most: float | None = None
    or_times: float | None = None

    def __str__(self) -> str:
        peer = "–" if self.theirs is None else f"{self.theirs:,.2f}"
        ratio = f"{self.ours / self.theirs:.2g}" if self.theirs else "–"
        budget = (
            "" if self.most is None else f"≤ {self.most:g}{self._instead()}{'' if self._holds() else ' **missed**'}"
        )
        return f"| {self.what}, {self.unit} | {self.ours:,.2f} | {self.peer} | {peer} | {ratio} | {budget} |"

    def _holds(self) -> bool:
        instead = (self.or_times or 0) * (self.theirs or 0)
        return self.most is None or self.ours <= max(self.most, instead)

    def _instead(self) -> str:
        return "" if self.or_times is None else f" or {self.or_times:g} × the peer"


TABLE = "| what | refold | peer | | ratio | budget |\n| --- | ---: | --- | ---: | ---: | --- |"


def quickest(*calls: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Milliseconds of each call's quickest round; they take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for index, call in enumerate(calls):
            began = time.perf_counter()
            call()
            best[index] = min(best[index], (time.perf_counter() - began) * 1000)
    return best


# --- large texts -------------------------------------------------------------------------------------------


def plain_cut(text: str) -> str:
    """What a loop without a library does: all of it to bytes, two slices, a marker."""
    raw, half = text.encode(), POLICY.bytes // 2
    marker = f"…{(len(raw) - POLICY.bytes) // 4} tokens truncated…"
    return f"{raw[:half].decode(errors='ignore')}{marker}{raw[-half:].decode(errors='ignore')}"


def plain_headed_cut(text: str) -> str:
    lines = text.count("\n")
    return f"Total output lines: {lines}\n\n{plain_cut(text)}"


def large_texts() -> Iterator[Figure]:
    for kind, line in LINES.items():
        yield from _cut(kind, line * (SAMPLE_BYTES // len(line.encode())))
        yield from _collected(kind, line.encode() * (SAMPLE_BYTES // len(line.encode())))


def _cut(kind: str, text: str) -> Iterator[Figure]:
    times = quickest(
        lambda: cut_middle(text, POLICY),
        lambda: plain_cut(text),
        lambda: format_cut(text, POLICY),
        lambda: plain_headed_cut(text),
    )
    cut, plain, headed, plain_headed = (each * GIGABYTE / SAMPLE_BYTES for each in times)
    most: dict[str, Any] = {"most": 1000, "or_times": None if text.isascii() else ENCODER}
    yield Figure(f"cut the middle of 1 GB, {kind}", "ms", cut, "encode, slice, decode", plain, **most)
    yield Figure(f"the same under a header, {kind}", "ms", headed, "the same and `count`", plain_headed, **most)


def _collected(kind: str, raw: bytes) -> Iterator[Figure]:
    chunks = [raw[start : start + READ_BYTES] for start in range(0, len(raw), READ_BYTES)]

    def collect() -> Collector:
        collector = Collector()
        for chunk in chunks:
            collector.feed(chunk)
        return collector

    def shape() -> str:
        return exec_output(captured, POLICY, chunk_id="0a1b2c", wall_seconds=1, exit_code=0)

    fed, joined = quickest(collect, lambda: b"".join(chunks))
    fed, joined = fed * GIGABYTE / len(raw), joined * GIGABYTE / len(raw)
    yield Figure(f"collect 1 GB in reads of 64 KiB, {kind}", "ms", fed, "join them all", joined, 1000)
    captured = collect().captured()
    yield Figure(f"shape what the collector kept (1 MiB), {kind}", "ms", quickest(shape)[0])


# Both read their standard input to its end; the kernel's mark of the most memory that this process itself has held.
READER = """
import json, os, sys, time
began = time.perf_counter()
{body}
seconds = time.perf_counter() - began
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps([seconds * 1000, int(status["VmHWM"].split()[0]) / 1024]))
"""
COLLECTING = """
from refold.tools.collector import Collector
collector = Collector()
while chunk := os.read(0, 65536):
    collector.feed(chunk)
assert len(collector.captured().tail) == 524288
"""
HOLDING = "output = sys.stdin.buffer.read()"


def stream() -> Iterator[Figure]:
    """A process that reads 2 GB from a pipe; the plain one holds it, as `subprocess.run(capture_output=True)` does."""
    ours, theirs = _read_by(COLLECTING), _read_by(HOLDING)
    peer = "hold it all"
    yield Figure("read 2 GB from a pipe", "ms", ours[0], peer, theirs[0])
    yield Figure("peak memory of the process that does", "MiB", ours[1], peer, theirs[1])


def _read_by(body: str) -> list[float]:
    """Milliseconds and MiB, the lowest of three processes."""
    words = [sys.executable, "-c", READER.format(body=body)]
    found: list[list[float]] = []
    for _ in range(3):
        source = subprocess.Popen(
            ["/bin/sh", "-c", f"yes '{LINES['ASCII'].strip()}' | head -c {STREAM_BYTES}"], stdout=subprocess.PIPE
        )
        found.append(json.loads(subprocess.run(words, stdin=source.stdout, stdout=subprocess.PIPE, check=True).stdout))
        source.communicate()
    return [min(column) for column in zip(*found, strict=True)]


# --- long histories ------------------------------------------------------------------------------------------


def turns(items: int, output_bytes: int) -> list[dict[str, Any]]:
    """Turns of four items: a question, a call, its output, an answer."""
    made: list[dict[str, Any]] = []
    for number in range(items // 4):
        call_id = f"call_{number}"
        made += [
            message("user", [f"Question {number}: what does step {number % 7} say?"]),
            {"type": "function_call", "name": "look", "arguments": json.dumps({"step": number}), "call_id": call_id},
            function_call_output(call_id, f"line {number} of the log\n".ljust(24) * (output_bytes // 24)),
            message("assistant", [f"Step {number % 7} says that all is well."]),
        ]
    return made


def entries_of(items: list[dict[str, Any]]) -> list[Entry]:
    return [entry(item, f"bench:{number}") for number, item in enumerate(items)]


def normalise() -> Iterator[Figure]:
    """100,000 entries, every call answered; and with every tenth answer missing, so that it is made up."""
    history = entries_of(turns(100_000, 48))
    torn = [e for number, e in enumerate(history) if number % 40 != 2]
    whole, repaired = quickest(
        lambda: prompt_from(history, PROFILE, base_instructions="b"),
        lambda: prompt_from(torn, PROFILE, base_instructions="b"),
        rounds=5,
    )
    yield Figure("normalise 100,000 items from scratch", "ms", whole, most=300)
    yield Figure("the same with 2,500 outputs missing", "ms", repaired, most=300)


def request() -> Iterator[Figure]:
    """The next request after two new entries, in a session of 10,000 items; refold's parts, and joined to one body."""
    items = turns(10_000, OUTPUT_BYTES)
    history, projection, wire = entries_of(items), Projection(PROFILE), Wire(PROVIDER, PROFILE)
    projection.prompt(history, base_instructions="b")
    body = wire.request(projection.prompt(history, base_instructions="b"), IDENTITY)
    found: dict[str, list[float]] = {"parts": [], "body": [], "json": []}
    for number in range(20):
        new = turns(4, OUTPUT_BYTES)[1:3]
        new = [{**item, "call_id": f"new_{number}"} for item in new]
        items += new
        history += entries_of(new)
        began = time.perf_counter()
        body = wire.request(projection.prompt(history, base_instructions="b"), IDENTITY)
        parted = time.perf_counter()
        body.body()
        joined = time.perf_counter()
        json.dumps({"model": "bench", "stream": True, "input": items}).encode()
        ended = time.perf_counter()
        for name, seconds in (("parts", parted - began), ("body", joined - began), ("json", ended - joined)):
            found[name].append(seconds * 1000)
    best = {name: min(times) for name, times in found.items()}
    what = f"request of 10,000 items ({body.size / 1e6:.1f} MB) after 2 new ones"
    yield Figure(what, "ms", best["parts"], "`json.dumps` of all", best["json"], 5)
    yield Figure("the same, joined to one body", "ms", best["body"], "`json.dumps` of all", best["json"], 5)


# --- trimming beside other libraries ---------------------------------------------------------------------------

TIMING = """
import json, sys, time
def quickest(call, rounds):
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best * 1000
"""
LANGCHAIN = f"""{TIMING}
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, trim_messages
from langchain_core.messages.utils import count_tokens_approximately
messages = []
for item in json.load(open(sys.argv[1])):
    if item["type"] == "function_call":
        call = {{"name": item["name"], "args": json.loads(item["arguments"]), "id": item["call_id"]}}
        messages.append(AIMessage("", tool_calls=[call]))
    elif item["type"] == "function_call_output":
        messages.append(ToolMessage(item["output"], tool_call_id=item["call_id"]))
    else:
        made = HumanMessage if item["role"] == "user" else AIMessage
        messages.append(made(item["content"][0]["text"]))
def trim():
    options = dict(strategy="last", start_on="human", include_system=True)
    return trim_messages(messages, max_tokens={KEPT_TOKENS}, token_counter=count_tokens_approximately, **options)
count = quickest(lambda: count_tokens_approximately(messages), 5)
print(json.dumps([count, quickest(trim, 3)]))
"""
AGENTS = f"""{TIMING}
from agents.extensions import ToolOutputTrimmer
from agents.run_config import CallModelData, ModelInputData
items = json.load(open(sys.argv[1]))
data = CallModelData(model_data=ModelInputData(input=items, instructions=None), agent=None, context=None)
trimmer = ToolOutputTrimmer(max_output_chars={LIMITED_CHARS}, preview_chars={PREVIEW_CHARS})
assert sum(old is not new for old, new in zip(items, trimmer(data).input)) > 2000
print(json.dumps([quickest(lambda: trimmer(data), 5)]))
"""


def trimming() -> Iterator[Figure]:
    """10,000 items of 5 MB, as each library holds them before the clock starts: no two do quite the same.

    - LangChain's `count_tokens_approximately` counts characters / 4 of every message at every call. refold measured
      each item once, when it was recorded, and adds up; "measured anew" is what that once cost.
    - `trim_messages` keeps the newest messages within a budget, from a user's message on. refold sends no history that
      was cut in silence: beside a summary it keeps what people typed, newest first, within a budget. What it does to a
      history with which even its request for a summary does not fit is `drop_oldest`, one request between two drops.
    - The Agents SDK's ToolOutputTrimmer shortens older outputs of more than 500 characters to a preview of 200, anew
      for each request. refold cuts an output to the policy once, when it is recorded: the row does that to all of them.
      The SDK's only other limit, SessionSettings.limit, counts items and looks into none.
    """
    items = turns(10_000, OUTPUT_BYTES)
    history = entries_of(items)

    def counted() -> int:
        return estimate(history, None)

    def dropped() -> list[Entry]:
        left, tokens = history, counted()
        while tokens > KEPT_TOKENS:
            shorter = drop_oldest(left)
            tokens -= left[0].tokens + (left[1].tokens if len(left) - len(shorter) == 2 else 0)
            left = shorter
        return left

    count, anew, projected, retained, limited = quickest(
        counted,
        lambda: entries_of(items),
        lambda: prompt_from(history, PROFILE, base_instructions=None),
        lambda: retained_user_messages(history, KEPT_TOKENS),
        lambda: [cut_output(item, Budget("bytes", LIMITED_CHARS)) for item in items],
    )
    dropping = quickest(dropped, rounds=1)[0]
    chain, sdk = _elsewhere(LANGCHAIN, items), _elsewhere(AGENTS, items)
    counter, trimmer = "LangChain `count_tokens_approximately`", "Agents SDK `ToolOutputTrimmer`"
    yield Figure("tokens of 10,000 items, sizes known", "ms", count, counter, chain[0])
    yield Figure("tokens of 10,000 items, measured anew", "ms", anew, counter, chain[0])
    trim = "LangChain `trim_messages`"
    yield Figure("projected and repaired, nothing dropped", "ms", projected, trim, chain[1])
    yield Figure("what people typed, within 100,000 tokens", "ms", retained, trim, chain[1])
    yield Figure("oldest dropped until 100,000 tokens are left", "ms", dropping, trim, chain[1])
    yield Figure("2,500 outputs of 1.6 kB limited to 500", "ms", limited, trimmer, sdk[0])


def _elsewhere(script: str, items: list[dict[str, Any]]) -> list[float] | list[None]:
    """The milliseconds that a script prints in the interpreter that has the libraries; none where there is none."""
    if not LIBRARIES.exists():
        return [None, None]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "items.json"
        path.write_text(json.dumps(items), encoding="utf-8")
        printed = subprocess.run([str(LIBRARIES), "-c", script, str(path)], stdout=subprocess.PIPE, check=True).stdout
    return json.loads(printed)


BENCHES: dict[str, Callable[[], Iterator[Figure]]] = {
    bench.__name__: bench for bench in (large_texts, stream, normalise, request, trimming)
}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        sys.exit(f"no bench named {unknown[0]}; there are: {', '.join(BENCHES)}")
    print(TABLE)
    for name in names or BENCHES:
        for figure in BENCHES[name]():
            print(figure, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
