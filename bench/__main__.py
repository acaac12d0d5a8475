"""Runs the benchmarks and prints their tables; `--write` makes docs/performance.md of them."""

from __future__ import annotations

import compileall
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec
from interop.real import PLACE

import refold
from bench import (
    blobs,
    catalogue,
    chat,
    compaction,
    core,
    crowd,
    estimate,
    gateway,
    long_logs,
    redaction,
    rollouts,
    rules,
    turns,
)
from bench.measure import TABLE, peers
from bench.peers import PEERS


class Group(msgspec.Struct, frozen=True):
    """Benches that share a table."""

    title: str
    table: str
    benches: dict[str, Callable[[], Iterator[object]]]
    notes: str


TURNS = Group(
    "Turns",
    TABLE,
    {
        bench.__name__: bench
        for bench in (
            turns.start_up,
            turns.first_request,
            turns.iterations,
            turns.guarded,
            turns.long_history,
            turns.resume,
            turns.record,
        )
    },
    """\
- *start to first request*: from the start of the process to the arrival of its first request.
- *iteration*: from the arrival of one request to the arrival of the next, inside one turn; refold also writes its log,
  limits outputs and knows the rules in force meanwhile. `nop` is a tool that does nothing; the real program has none
  and answers that the call is not supported. The bare loop runs commands in `bash -lc`, as the real program does;
  refold reads the login files once (docs/decisions/0018-login-files-are-read-once.md).
- *permissions and hooks on*: workspace-write, on-request, somebody to ask, a hook around each call. What the walls
  themselves cost (namespaces, mounts) is the kernel's.
- Where a budget says *or*, docs/decisions/0019-time-budgets-are-compared-in-one-run.md says why.
- *request to request at 10,000 items*: the same in a session with a 5 MB history.
- *resume of 20,000 items*: refold and the real program read the same log; the others read one JSON list.
""",
)
CORE = Group(
    "Core",
    core.TABLE,
    core.BENCHES,
    """\
A ratio below 1 says that refold needs less. No two libraries do quite the same; `bench/core.py` says what each does.
Cutting ASCII does not read what it throws away; other texts are counted at the speed of Python's own UTF-8 encoder.
""",
)
ESTIMATES = Group(
    "Estimates",
    "\n".join(estimate.TABLE),
    {"estimate": estimate.rows},
    """\
Against exact o200k counts, on files and on kinds of log that played no part in choosing the weights; what is made here
(logs, base64, hex) comes from the same word lists and dice as the texts that did. The protocol's rule, bytes / 4,
states limits; the guess decides when compaction is due where no provider has told any usage (docs/decisions/0013).
""",
)
CROWD = Group(
    "Crowd",
    crowd.TABLE,
    {"crowd": crowd.rows},
    """\
1,000 sessions at once in one process, each with its own model, 20 turns each with a tool call; the provider is a
process of its own. Memory is resident pages after a full collection, less the items themselves.
""",
)
CHAT = Group(
    "Chat",
    chat.TABLE,
    {"chat": chat.rows},
    """\
`refold chat` at a real terminal. The prompt is there before settings are read and a session is opened; what is typed
meanwhile waits for it.
""",
)
COMPACTION = Group(
    "Compaction",
    compaction.TABLE,
    {"compaction": compaction.rows},
    """\
A session of 10,000 items (5 MB), compacted by hand. The time is refold's own: its records on disk, the rules observed
anew, the request made; not what the model takes. The outline beside a provider's own item is made while the provider
works. Providers read tools, instructions and input, in this order: what a request shares with the one before it from
its beginning on is what their prompt cache can reuse.
""",
)
RULES = Group(
    "Rules",
    rules.TABLE,
    {"rules": rules.rows},
    """\
What looking at the surroundings costs before a turn: a project of 2,000 folders, AGENTS.md files on the way down, 50
approved prefixes. When nothing changed it is stats alone.
""",
)
ROLLOUTS = Group(
    "Rollouts",
    core.TABLE,
    {"rollouts": rollouts.rows, "long_logs": long_logs.rows},
    """\
- *from file to thread*: beside folding the whole file in the same way, each in a process of its own.
- *start to first request*: files as the real program writes them, opened by a process of refold's and, in a fresh
  home, of the real program's. A checkpoint is 0.9 MB. *More than a new session*: less what that program takes anyway.
""",
)
BLOBS = Group(
    "Blobs",
    core.TABLE,
    {"blobs": blobs.rows},
    """\
A session of 100 pictures that each of its 50 compactions keeps, once with `[rollout] blobs` (docs/rollout.md) and once
without. On disk counts whole blocks, of the file and of the folder beside it.
""",
)
CATALOGUE = Group(
    "Catalogue",
    core.TABLE,
    {"catalogue": catalogue.rows},
    """\
10,000 sessions of about 20 lines under one home, in folders of 30. A list asks every file for its time, size and
number; the peer is a list without an index, in the same run. *whole* has Python's start in it.
""",
)
REDACTION = Group(
    "Redaction",
    core.TABLE,
    {"redaction": redaction.rows},
    """\
An append is a record encoded, written and folded; with `[redaction]` its texts are looked through before
(docs/redaction.md).
""",
)
GATEWAY = Group(
    "Gateway",
    core.TABLE,
    {"gateway": gateway.rows},
    """\
`refold serve` with one worker between an upstream and a client, three processes on one machine; each stream says 10
events a second, all streams together at an even pace. *Added*: what the same client does not have straight at the
upstream, in the same run. Memory and counts are of one process through all rounds; `bench/gateway.py` says the rest.
""",
)
GROUPS = (TURNS, COMPACTION, RULES, ROLLOUTS, BLOBS, CATALOGUE, REDACTION, CORE, ESTIMATES, CROWD, CHAT, GATEWAY)

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
HEAD = """# Performance

Made by `make bench ARGS=--write`: refold beside a bare agent loop (`bench/bare.py`: httpx2, a list, everything encoded
anew for each request, nothing stored), the real program, the OpenAI Agents SDK and LangChain, where `make peers` put
them, on the same scripted provider, in one run. The ratios count; the absolute numbers say more about the machine
({machine}) and what else it was doing. Each number is the lowest of the rounds, in which the
peers take turns. Budgets are those of the design. `make bench ARGS="crowd --write"` makes one table anew.
"""


def main(words: list[str]) -> None:
    names = [word for word in words if word != "--write"]
    known = [name for group in GROUPS for name in group.benches]
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no bench named {unknown[0]}; there are: {', '.join(known)}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed refold is compiled, so the measured one must be
    compileall.compile_dir(str(Path(refold.__file__).parent), quiet=2)
    os.environ["HOME"] = tempfile.mkdtemp()  # a login shell must not read somebody's profile in every iteration
    PLACE.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(PLACE)  # the real program does not work from the system's temporary folder
    for peer in PEERS:
        if peer not in peers():
            print(f"{peer.name} is not installed (make peers)", file=sys.stderr)
    pages: dict[str, str] = {}
    for group in GROUPS:
        chosen = [name for name in group.benches if not names or name in names]
        if group is ESTIMATES and chosen and find_spec("quicktok") is None:
            if "--write" in words:
                sys.exit("no exact token counter is installed (make peers): the page would lack its table")
            print("no exact token counter is installed (make peers)", file=sys.stderr)
            continue
        if chosen:
            pages[group.title] = _measured(group, chosen)
    if "--write" in words:
        _write(pages)


def _write(measured: dict[str, str]) -> None:
    """The page with what was measured; tables of other groups stay as they are."""
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:] if PAGE.exists() else []
    pages = {text.partition("\n")[0]: f"## {text}".rstrip("\n") + "\n" for text in sections} | measured
    ordered = [pages[group.title] for group in GROUPS if group.title in pages]
    PAGE.write_text("\n".join([HEAD.format(machine=machine), *ordered]), encoding="utf-8")


def _measured(group: Group, names: list[str]) -> str:
    print(f"\n## {group.title}\n\n{group.table}")
    rows: list[str] = []
    for name in names:
        for row in group.benches[name]():
            rows.append(str(row))
            print(row, flush=True)
    table = "\n".join([group.table, *rows])
    return f"## {group.title}\n\n{table}\n\n{group.notes}"


if __name__ == "__main__":
    main(sys.argv[1:])
