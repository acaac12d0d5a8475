"""Whatever changes, and is compacted, resumed, forked or undone: the prompt shows the world as it was observed last."""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from refold.core.config import Config
from refold.core.fragments import (
    KIND_AGENTS_MD,
    KIND_ENVIRONMENT,
    KIND_MODEL_SWITCH,
    KIND_PERMISSIONS,
    KIND_PREFIX_SAVED,
    NO_LONGER_APPLY,
    stored_kinds,
)
from refold.core.items import message_texts
from refold.core.modes import Mode
from refold.core.permissions import SandboxMode
from refold.core.profile import Profile, Provider
from refold.core.skill import KIND_SKILLS
from refold.core.thread import same_state
from refold.core.world import Fragment
from refold.core.world.mode import KIND_MODE
from refold.core.world.personality import KIND_PERSONALITY
from refold.core.world.plugins import KIND_PLUGINS
from refold.errors import CompactionFailed
from refold.model.scripted import ScriptedModel
from refold.session.approved import Approval, remember
from refold.session.clock import Clock
from refold.session.memory import read_thread
from refold.session.session import Session
from refold.testing import text_reply
from refold.tools.commands import exec_command

PROVIDER = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)
MODES: tuple[SandboxMode, ...] = ("read-only", "danger-full-access", "workspace-write")
MANNERS = {"default": "", "plan": "propose a plan", "review": "Only review."}
KIND_SKY = "test.sky"
PATIENCE = 60  # seconds that no session here needs

edits = st.one_of(
    st.tuples(st.just("rules"), st.sampled_from([None, "Say please.\n", "Never say please.\n"])),
    st.tuples(st.just("day"), st.just(None)),
    st.tuples(st.just("sky"), st.sampled_from([None, "blue", "grey"])),
    st.tuples(st.just("approve"), st.sampled_from(["git", "make", "cargo"])),
    st.tuples(st.just("mode"), st.sampled_from(MODES)),
    st.tuples(st.just("model"), st.sampled_from("ab")),
    st.tuples(st.just("manner"), st.sampled_from(sorted(MANNERS))),
    st.tuples(st.just("speech"), st.sampled_from(["none", "friendly", "Like a pirate."])),
    st.tuples(st.just("plugin"), st.sampled_from([None, "Cuts.", "Glues."])),
)
moves = st.sampled_from([("say", None), ("compact", None), ("fork", None), ("undo", None), ("undo", 1), ("undo", 2)])
plays = st.lists(st.one_of(edits, edits, moves, moves, moves), min_size=3, max_size=14)


class Calendar(Clock):
    """A clock whose day is set."""

    def __init__(self) -> None:
        super().__init__()
        self.day = datetime(2026, 5, 4, 12, tzinfo=UTC)

    def now(self) -> datetime:
        return self.day

    def jitter(self) -> float:
        return 0.0


class Sky:
    id = "sky"

    def __init__(self) -> None:
        self.colour: str | None = None

    async def observe(self) -> Any:
        return None if self.colour is None else {"colour": self.colour, "moon": None}

    def render(self, now: Any, before: Any) -> list[Fragment]:
        return [Fragment("user", KIND_SKY, f"<sky>{now['colour'] if now else 'unknown'}</sky>")]


def put_plugin(folder: Path, description: str | None) -> None:
    """The one plugin of refold's home, with a skill; or (None) none."""
    if folder.exists():
        shutil.rmtree(folder)
    if description is None:
        return
    (folder / ".codex-plugin").mkdir(parents=True)
    (folder / ".codex-plugin" / "plugin.json").write_text(json.dumps({"description": description}))
    (folder / "skills" / "do").mkdir(parents=True)
    (folder / "skills" / "do" / "SKILL.md").write_text(f"---\ndescription: {description}\n---\n")


async def yes(question: Any) -> bool:
    return True


class Player:
    """One session and the world around it. Mutable: both go on."""

    def __init__(self, folder: Path) -> None:
        self.home, self.work = folder / "home", folder / "work"
        self.work.mkdir()
        self.clock, self.sky, self.model = Calendar(), Sky(), "a"
        self.mode: SandboxMode = "read-only"
        self.manner, self.speech = "default", "none"
        self.plugin: str | None = None
        self.thread: str | None = None
        self.approved: list[str] = []
        self.begun_with = "a"
        self.changed = True

    def session(self) -> Session:
        model = ScriptedModel(
            lambda _: text_reply("well"),
            profile=Profile(slug=self.model, base_instructions=f"BE {self.model}"),
            provider=PROVIDER,
        )
        common: dict[str, Any] = {
            "model": model,
            "tools": [exec_command],
            "home": self.home,
            "approve": yes,
            "sections": [self.sky],
            "clock": self.clock,
            "config": Config(
                sandbox_mode=self.mode,
                approval_policy="untrusted",
                collaboration_mode=self.manner,
                collaboration_modes={"review": Mode(instructions="Only review.")},
                personality=self.speech,
            ),
        }
        if self.thread is None:
            self.begun_with = self.model
            return Session.start(cwd=self.work, **common)
        return Session.resume(self.thread, **common)

    async def do(self, what: str, how: Any) -> None:
        match what:
            case "rules":
                (self.work / "AGENTS.md").unlink(missing_ok=True)
                if how is not None:
                    (self.work / "AGENTS.md").write_text(how)
            case "day":
                self.clock.day += timedelta(days=1)
            case "sky":
                self.sky.colour = how
            case "approve":
                self.approved = list(dict.fromkeys([*self.approved, how]))
                remember(self.home, Approval(words=(how, "test"), program=f"/usr/bin/{how}", workspace=str(self.work)))
            case "mode":
                self.mode = how
            case "model":
                self.model = how
            case "manner":
                self.manner = how
            case "speech":
                self.speech = how
            case "plugin":
                self.plugin = how
                put_plugin(self.home / "plugins" / "kit", how)
            case _:
                await self.move(what, how)
                return
        self.changed = True

    async def move(self, what: str, how: Any) -> None:
        if self.thread is None and what != "say":
            return
        async with self.session() as session:
            if what == "fork":
                child = Session.fork(session.id, home=self.home, model=session.model, clock=self.clock)
                self.thread = child.id
                child.memory.close()
                return
            self.thread = session.id
            before = len(told(session))
            if what == "say":
                await session.send("go on")
                shows_the_world(session, self)
                assert self.changed or len(told(session)) == before, "nothing changed, and something was told"
                self.changed = False
            elif what == "compact" and session.memory.thread.history:
                ended = await session.compact()
                if ended.installed:
                    shows_the_world(session, self)
                    kinds = [kind for kind, _ in told(session)]
                    assert len(kinds) == len(set(kinds)), f"told twice: {kinds}"
                    self.changed = False
            elif what == "undo":
                self.changed = True
                try:
                    await session.undo(how)
                except CompactionFailed:
                    return
            assert session.path is not None
            assert same_state(read_thread(session.path), session.memory.thread)


def told(session: Session) -> list[tuple[str, str]]:
    """What the prompt shows of the world: kind and text of each part, in order."""
    items = [e.item for e in session.memory.thread.history if e.origin == "injected"]
    return [pair for item in items for pair in zip(stored_kinds(item), message_texts(item), strict=True)]


def last(session: Session, kind: str) -> str:
    return next((text for one, text in reversed(told(session)) if one == kind), "")


def shows_the_world(session: Session, player: Player) -> None:
    rules = last(session, KIND_AGENTS_MD)
    path = player.work / "AGENTS.md"
    if path.exists():
        assert path.read_text() in rules and f" for {player.work}\n" in rules
    else:
        assert not rules or NO_LONGER_APPLY in rules
    surroundings = last(session, KIND_ENVIRONMENT)
    assert f"<cwd>{player.work}</cwd>" in surroundings
    assert f"<current_date>{player.clock.day:%Y-%m-%d}</current_date>" in surroundings
    sky = last(session, KIND_SKY)
    assert sky == f"<sky>{player.sky.colour}</sky>" if player.sky.colour else sky in ("", "<sky>unknown</sky>")
    assert_permissions(session, player)
    assert_manner(session, player)
    switched = last(session, KIND_MODEL_SWITCH)
    assert f"\nBE {player.model}\n" in switched if switched else player.model == player.begun_with


def assert_manner(session: Session, player: Player) -> None:
    mode, says = last(session, KIND_MODE), MANNERS[player.manner]
    assert (f"# Mode: {player.manner}\n" in mode and says in mode) if mode else not says
    speech = last(session, KIND_PERSONALITY)
    wanted = {"none": "no longer", "friendly": "colleague"}.get(player.speech, player.speech)
    assert wanted in speech if speech else player.speech == "none"
    plugins, skills = last(session, KIND_PLUGINS), last(session, KIND_SKILLS)
    if player.plugin is None:
        assert not plugins or "no longer in use" in plugins
        assert "kit:do" not in skills
    else:
        assert f"- kit: {player.plugin} (" in plugins and f"- kit:do: {player.plugin} (" in skills


def assert_permissions(session: Session, player: Player) -> None:
    parts = [(kind, text) for kind, text in told(session) if kind in (KIND_PERMISSIONS, KIND_PREFIX_SAVED)]
    whole = max(index for index, (kind, _) in enumerate(parts) if kind == KIND_PERMISSIONS)
    assert player.mode in parts[whole][1].splitlines()[1]
    assert ("Network: " in parts[whole][1]) == (player.mode != "danger-full-access")
    lines = [line for _, text in parts[whole:] for line in text.splitlines() if line.startswith("- [")]
    assert lines == [f"- {json.dumps([name, 'test'], separators=(',', ':'))}" for name in player.approved]


SAY, COMPACT, UNDO = ("say", None), ("compact", None), ("undo", None)
FORK = ("fork", None)


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(plays)
@example([SAY, ("mode", "workspace-write"), COMPACT, ("approve", "git"), SAY, UNDO, SAY])
@example([SAY, ("model", "b"), SAY, COMPACT, SAY, COMPACT, UNDO, ("model", "a"), SAY])
@example([SAY, ("sky", "blue"), SAY, ("sky", None), COMPACT, ("sky", "grey"), SAY, ("undo", 1), ("sky", None), SAY])
@example([("manner", "plan"), SAY, ("manner", "default"), SAY, ("undo", 1), SAY, COMPACT, ("speech", "friendly"), SAY])
@example([("plugin", "Cuts."), SAY, COMPACT, ("plugin", None), SAY, ("undo", 1), ("plugin", "Glues."), SAY, FORK, SAY])
@example([("manner", "review"), ("speech", "Be odd."), SAY, COMPACT, ("speech", "none"), ("model", "b"), SAY, UNDO])
@example([("rules", "Say please.\n"), SAY, ("rules", None), SAY, COMPACT, UNDO, SAY, ("fork", None), SAY, UNDO])
def test_the_prompt_shows_the_world_as_it_was_observed_last(play: list[tuple[str, Any]]) -> None:
    with TemporaryDirectory() as folder:
        player = Player(Path(folder).resolve())

        async def acts() -> None:
            for what, how in [*play, SAY]:
                await player.do(what, how)

        asyncio.run(asyncio.wait_for(acts(), PATIENCE))
