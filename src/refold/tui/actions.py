"""Actions: what the slash commands do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from refold import __version__
from refold.core.records import TurnEnded, TurnStarted
from refold.errors import RefoldError
from refold.session.feed import drain
from refold.session.home import model_named
from refold.tui.board import gauge
from refold.tui.choice import newest_first, shown_folder
from refold.tui.commands import COMMANDS
from refold.tui.past import past
from refold.views.context import context
from refold.views.shown import clean, one_line

if TYPE_CHECKING:
    from refold.session.session import Session
    from refold.tui.conversation import Conversation

CONTEXT_ROWS = 12  # of the next request, the last ones are shown; `refold context` shows all
KEYS = (
    ("Enter", "send; while the model works: steer it, it reads that at its next step"),
    ("Alt-Enter", "a new line (so does a backslash at the end of one)"),
    ("Esc, Ctrl-C", "interrupt the turn; a second time: leave"),
    ("Up, Down", "what you said before"),
)

Tell: TypeAlias = Callable[["Conversation"], None]
Do: TypeAlias = "Callable[[Conversation, str], Coroutine[Any, Any, None]]"


# --- what is only told -------------------------------------------------------------------------------------------


ASKED = {
    "never": "nothing",
    "on-request": "when one wants to leave it",
    "on-failure": "when one wants to leave it",
    "untrusted": "before each that may change something",
}


def help_told(chat: Conversation) -> None:
    for name, (argument, text) in COMMANDS.items():
        chat.say(f"  {f'/{name} {argument}':<14} {text}")
    for keys, text in KEYS:
        chat.say(f"  {keys:<14} {text}")
    chat.say("  //…            sends a text that begins with a slash")


def status_told(chat: Conversation) -> None:
    session = _open(chat)
    memory, settings = session.memory, session.memory.thread.settings or {}
    tools = chat.opening.tools
    where = session.surroundings
    asked = ASKED.get(where.approval_policy, where.approval_policy)
    commands = f"sandbox {where.sandbox_mode}, you are asked {asked}" if tools else "none"
    rows = {
        "session": session.id,
        "file": str(session.path) if _is_written(session) else "not written yet",
        "folder": settings.get("cwd") or (memory.thread.meta.cwd if memory.thread.meta else ""),
        "model": f"{memory.profile.slug} at {session.model.provider.id}",
        "commands": commands,
        "turns": f"{memory.thread.turns:,}, {memory.thread.compactions} compactions",
        "context": _gauge_text(chat),
        "used": f"{memory.thread.total_usage.total_tokens:,} tokens",
    }
    for name, value in rows.items():
        chat.say(f"  {name:<9} {one_line(str(value))}")


def context_told(chat: Conversation) -> None:
    session = _open(chat)
    seen = context(session.memory.thread, session.memory.profile)
    if len(seen.rows) > CONTEXT_ROWS:
        before = sum(row.tokens for row in seen.rows[:-CONTEXT_ROWS])
        chat.say(f"  … {len(seen.rows) - CONTEXT_ROWS:,} items before, {before:,} tokens", "dim")
    for row in seen.rows[-CONTEXT_ROWS:]:
        chat.say(f"  {row.tokens:>8,}  {row.kind:<22} {row.preview[:80]}")
    for text in seen.steers:
        chat.say(f"  waits: {one_line(text)}", "yellow")
    for odd in seen.odd:
        chat.say(f"  {odd.address} {odd.call_id}: {odd.what}", "yellow")
    how = "counted by the provider, its tail estimated" if seen.counted else "estimated"
    due = f", compaction at {seen.limit:,}" if seen.limit else ""
    chat.say(f"  {_gauge_text(chat)}{due}; {how}")
    chat.say(f"  refold context {session.id} shows every item", "dim")


def skills_told(chat: Conversation) -> None:
    from refold.observe.skills import skills_of
    from refold.observe.watch import Watch
    from refold.session.plugins import plugins_of

    session = _open(chat)
    where, config = session.surroundings, session.memory.config
    found, plugins = skills_of(where, Watch()), plugins_of(config, where.home, Watch())
    theirs = [skill for skill in plugins.skills if config.skills.allows(skill)] if plugins else []
    for skill in (*found.skills, *theirs):
        chat.say(f"  ${clean(skill.name)}  {clean(skill.description)[:80]}")
        chat.say(f"    {clean(skill.path)}", "dim")
    for text in (*found.notices, *(plugins.notices if plugins else ())):
        chat.say(f"  {text}", "yellow")
    if not found.skills and not theirs:
        chat.say("  no skills: a skill is a folder with a SKILL.md in .agents/skills here, or in your home", "dim")


def welcome(chat: Conversation) -> None:
    """The first lines of a session: the last turns of one that is gone on with, and what it is."""
    session = _open(chat)
    thread = session.memory.thread
    for text, look in past(thread.history):
        chat.say(text, look)
    goes_on = f"session {session.id} · turn {thread.turns + 1} · " if thread.history else ""
    folder = thread.meta.cwd if thread.meta else ""
    chat.say(
        f"refold {__version__} · {goes_on}{session.memory.profile.slug} · {clean(shown_folder(folder))} · /help", "dim"
    )
    for text in thread.steers.values():
        chat.say(f"waits for your next message: {one_line(text)}", "dim")


# --- what is done --------------------------------------------------------------------------------------------------


async def compact(chat: Conversation, focus: str) -> None:
    session, teller = _open(chat), chat.teller
    assert teller is not None
    feed = session.memory.feed
    listener = feed.listen()

    async def show() -> None:
        async for event in drain(listener):
            if not isinstance(event, TurnStarted | TurnEnded):  # it is a turn of its own, but nobody spoke
                teller.show(event)

    shown = asyncio.ensure_future(show())
    try:
        await session.compact(focus.strip() or None)
    finally:
        feed.end(listener)
        await shown


async def undo(chat: Conversation, _: str) -> None:
    undone = await _open(chat).undo()
    chat.say(f"⇣ {undone}", "magenta")
    assert chat.teller is not None
    chat.teller.count()


async def pin(chat: Conversation, address: str) -> None:
    from refold.core.pins import tokens_of
    from refold.session.pins import budget_of, newest_said

    session = _open(chat)
    pinned = session.pin(address or newest_said(session.memory.thread))
    chat.say(f"pinned {clean(pinned.address)}: {one_line(pinned.text, 80)}", "magenta")
    room = f"{tokens_of(session.memory.thread.pins):,} of {budget_of(session.memory):,} tokens for pins"
    chat.say(f"  {room}; refold rules {session.id} lists them", "dim")


async def rename(chat: Conversation, name: str) -> None:
    session = _open(chat)
    if not name:
        now = session.memory.thread.name
        chat.say(f"it is called {one_line(now)}; /rename NAME changes that" if now else "which name? /rename NAME")
        return
    chat.say(f"called {one_line(session.rename(name))}", "magenta")


async def fork(chat: Conversation, _: str) -> None:
    session = _open(chat)
    if not _is_written(session):
        chat.say("there is nothing to fork yet: nothing was said", "yellow")
        return
    path = session.path
    assert path is not None
    await chat.switch(lambda: chat.opening.fork(path, chat.approve))


async def new(chat: Conversation, _: str) -> None:
    await chat.switch(lambda: chat.opening.start(chat.approve))


async def resume(chat: Conversation, reference: str) -> None:
    if not reference:
        await pick(chat)
        return
    path, _ = await asyncio.to_thread(chat.opening.home.catalogue().find, reference)
    await _resume_path(chat, path)


async def model(chat: Conversation, name: str) -> None:
    session = _open(chat)
    if not name:
        chat.say(f"{session.memory.profile.slug} answers; /model NAME changes that")
        return
    before, changed = chat.opening, chat.opening._replace(model=name)
    await asyncio.to_thread(model_named, name, chat.opening.config)  # raises before anything is closed
    if not _is_written(session):
        await chat.switch(lambda: changed.start(chat.approve))
        chat.opening = changed
        return
    path = session.path
    assert path is not None
    try:
        await chat.switch(lambda: changed.resume(path, chat.approve, in_place=True), close_first=True)
        chat.opening = changed
    except RefoldError as error:
        chat.complain(error)
        await chat.switch(lambda: before.resume(path, chat.approve, in_place=True))


async def mode(chat: Conversation, name: str) -> None:
    from refold.core.modes import mode_names
    from refold.session.modes import manner_in_force, use_mode

    memory = _open(chat).memory
    if not name:
        names = ", ".join(mode_names(memory.config.collaboration_modes))
        chat.say(f"mode {manner_in_force(memory).mode}; /mode NAME changes that: {names}")
        return
    use_mode(memory, name)
    chat.opening = chat.opening._replace(config=replace(chat.opening.config, collaboration_mode=name))
    chat.say(f"mode {name}, from your next message on", "magenta")


async def personality(chat: Conversation, text: str) -> None:
    from refold.session.modes import manner_in_force, use_personality

    memory = _open(chat).memory
    if not text:
        now = manner_in_force(memory).personality or "none"
        chat.say(f"personality {one_line(now)}; /personality friendly, pragmatic, none or a text changes that")
        return
    use_personality(memory, text)
    chat.opening = chat.opening._replace(config=replace(chat.opening.config, personality=memory.config.personality))
    chat.say(f"personality {one_line(text)}, from your next message on", "magenta")


async def pick(chat: Conversation) -> bool:
    """Go on with a session that the person picks; False when they pick none."""
    found = newest_first(await asyncio.to_thread(chat.opening.home.catalogue().sessions))
    open_now = chat.session.path if chat.session else None
    found = [one for one in found if one.path != open_now]
    if not found:
        chat.say("there is no other session yet", "yellow")
        return False
    chat.board.state = "choosing"
    chosen = await chat.surface.pick(found)
    if chosen is None:
        return False
    await _resume_path(chat, chosen.path)
    return True


async def _resume_path(chat: Conversation, path: Path) -> None:
    if chat.session is not None and chat.session.path == path:
        chat.say("that session is open already", "yellow")
        return
    await chat.switch(lambda: chat.opening.resume(path, chat.approve))


async def sessions(chat: Conversation, _: str) -> None:
    await pick(chat)


TOLD: dict[str, Tell] = {"help": help_told, "status": status_told, "context": context_told, "skills": skills_told}
DONE: dict[str, Do] = {
    "compact": compact,
    "undo": undo,
    "pin": pin,
    "rename": rename,
    "fork": fork,
    "new": new,
    "resume": resume,
    "sessions": sessions,
    "model": model,
    "mode": mode,
    "personality": personality,
}


def _open(chat: Conversation) -> Session:
    assert chat.session is not None, "commands wait until a session is open"
    return chat.session


def _is_written(session: Session) -> bool:
    return session.path is not None and session.path.exists()


def _gauge_text(chat: Conversation) -> str:
    return "".join(text for _, text in gauge(chat.board))
