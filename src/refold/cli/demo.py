"""Demo: a whole session played for real: tools, a steer, limited output, compaction in mid-turn, a second process.

Only the model's side is a script. It is served over HTTP by the shipped scripted provider; commands, files, the log and
the second process are real.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from refold.cli.live import LiveView
from refold.cli.look import print_context
from refold.cli.style import paint
from refold.core.profile import Profile
from refold.core.truncate import Budget, tokens_for
from refold.core.usage import Usage
from refold.model.responses import ResponsesModel
from refold.session.events import CompactionEnded, CompactionStarted, Event, ToolStarted
from refold.session.session import Session
from refold.testing import Reply, ResponsesServer, call_reply, text_reply
from refold.testing.server import LoggedRequest
from refold.tools.commands import exec_command
from refold.views.context import context

MODEL = "demo-model"
WINDOW = 12_000  # tokens; small, so that one long output fills it

GOAL = (
    "Create README.md with this content:\n\n# Codex Demo\n\n这是一个使用 Rust 编写的 Agent 项目。\n\n"
    "Run the tests before you write it."
)
STEER = "补充限制：只修改 README.md，不要覆盖其他文件。 (Only change README.md; do not overwrite other files.)"
QUESTION = "Verify README.md: is it what I asked for?"
LATER = "Which files did you change, and how do you know?"

CHECK = "test -f README.md && cat README.md || printf 'README absent\\n'"
RUN_TESTS = (
    "for i in $(seq 1 2500); do printf 'EXEC-LINE-%04d test_case_%d ... ok (0.00s)\\n' $i $i; done; echo 2500 passed"
)
WRITE = "cat > README.md <<'EOF'\n# Codex Demo\n\n这是一个使用 Rust 编写的 Agent 项目。\nEOF"
READ = "cat README.md"

SUMMARY = """Progress: README.md was absent at the start. The test run is finished: 2500 passed.
Constraints from the user: the exact content is in the user's message; only README.md may be changed.
Remaining: write README.md, read it back, report."""


@click.command()
@click.option("--folder", metavar="FOLDER", help="Play in this new folder (default: a temporary one).")
def demo(folder: str | None) -> int:
    """Play a whole session for real: tools, a steer, limited output, compaction in mid-turn, a second process.

    The model's side is scripted, so that it needs no key and no network.
    """
    place = Path(folder).absolute() if folder else Path(tempfile.mkdtemp(prefix="refold-demo-"))
    try:
        (place / "project").mkdir(parents=True)
    except OSError as error:
        raise click.UsageError(f"{place} cannot be used: {error.strerror}") from None
    _headline("refold demo")
    _tell("The model's side is scripted and served over HTTP on this machine; everything else is real.")
    with ResponsesServer(script()) as server:
        session_id, path = asyncio.run(_first_process(server, place))
        _headline("4 · A second process resumes the session from disk")
        status = _second_process(server, place, session_id)
    _farewell(place, session_id, path)
    return status


def script() -> list[Callable[[LoggedRequest], Reply]]:
    """What the model says, in order: each reply tells as usage what its request really holds."""
    return [
        _counted(text_reply("I look at what is there first."), call_reply("exec_command", {"cmd": CHECK})),
        _counted(call_reply("exec_command", {"cmd": RUN_TESTS})),
        _counted(text_reply(SUMMARY)),
        _counted(call_reply("exec_command", {"cmd": WRITE})),
        _counted(text_reply("README.md is written; nothing else was touched. The tests passed before (2500).")),
        _counted(call_reply("exec_command", {"cmd": READ})),
        _counted(text_reply("Yes: the heading and the sentence are exactly those of your message.")),
        _counted(call_reply("exec_command", {"cmd": "ls"})),
        _counted(text_reply("Only README.md: `ls` shows no other file, and your limit was to change nothing else.")),
    ]


def first_process_requests(place: Path) -> list[LoggedRequest]:
    """Play the first process's part in an existing or new folder and give what the model was asked."""
    (place / "project").mkdir(parents=True, exist_ok=True)
    with ResponsesServer(script()) as server:
        asyncio.run(_first_process(server, place))
        return list(server.requests)


def _counted(*replies: Reply) -> Callable[[LoggedRequest], Reply]:
    items = tuple(item for reply in replies for item in reply.items)

    def reply(request: LoggedRequest) -> Reply:
        inputs = tokens_for(len(request.body))
        return Reply(
            items=items, usage=Usage(input_tokens=inputs, output_tokens=40, total_tokens=inputs + 40), pace=0.01
        )

    return reply


async def _first_process(server: ResponsesServer, place: Path) -> tuple[str, Path]:
    profile = Profile(slug=MODEL, context_window=WINDOW, truncation=Budget("tokens", 10_000))
    model = ResponsesModel(profile, server.provider())
    session = Session.start(model=model, tools=[exec_command], cwd=place / "project", home=place / "home")
    async with session:
        view = _DemoView(session)
        view.begin()
        _headline("1 · A goal, a command, and a steer while it works")
        _user(GOAL)
        async for event in session.send(GOAL):
            view.show(event)
        _headline("3 · The follow-up question, after the compaction")
        _user(QUESTION)
        async for event in session.send(QUESTION):
            view.show(event)
        assert session.path is not None
        return session.id, session.path


class _DemoView(LiveView):
    """The ordinary view of a turn, which also steers once and shows the context around a compaction."""

    steered = False

    def show(self, event: Event) -> None:
        if isinstance(event, CompactionStarted):
            _headline("2 · The window is full in mid-turn: what the model saw before")
            self._show_context()
        super().show(event)
        if isinstance(event, ToolStarted) and not self.steered:
            self.steered = True
            self._session.steer(STEER)
            _user(STEER)
        if isinstance(event, CompactionEnded):
            _tell("What the model sees from now on; the rules in force are injected anew, not remembered:")
            self._show_context()

    def _show_context(self) -> None:
        thread = self._session.memory.thread
        sys.stdout.flush()
        print_context(context(thread, self._session.memory.profile), [], live=False)


def _second_process(server: ResponsesServer, place: Path, session_id: str) -> int:
    settings = {
        "model": MODEL,
        "model_provider": "scripted",
        "model_context_window": str(WINDOW),
        "model_providers.scripted.base_url": server.url,
    }
    options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    command = [sys.executable, "-m", "refold", "resume", session_id, LATER, "--allow-exec", *options]
    _tell(f"$ refold resume {session_id[:13]}… {LATER!r}")
    sys.stdout.flush()
    environ = {**os.environ, "REFOLD_HOME": str(place / "home"), "no_proxy": "127.0.0.1"}
    return subprocess.run(command, env=environ, check=False).returncode  # noqa: S603 (our own interpreter and words)


def _farewell(place: Path, session_id: str, path: Path) -> None:
    _headline("Where it lies")
    _tell(f"the session's log (every item, also what was compacted away):\n  {path}")
    home = f"REFOLD_HOME={place / 'home'}"
    _tell(f"look at it:\n  {home} refold show {session_id}\n  {home} refold context {session_id}")
    _tell(
        "This model was a script. With a real one:\n"
        "  export OPENAI_API_KEY=…            (or a [model_providers.X] table in ~/.refold/config.toml)\n"
        '  refold run "…" -m MODEL'
    )


def _headline(text: str) -> None:
    print(f"\n{paint('── ' + text + ' ', 'bold')}{paint('─' * max(0, 72 - len(text)), 'dim')}", flush=True)


def _user(text: str) -> None:
    for line in text.splitlines():
        print(paint(f"│ {line}", "green"), flush=True)


def _tell(text: str) -> None:
    print(text, flush=True)
