"""Commands: what a line of input means: a message, or a command that begins with a slash."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Said(NamedTuple):
    """A message for the model."""

    text: str


class Command(NamedTuple):
    """A command by its name, and what stands after it."""

    name: str
    argument: str = ""


class Unknown(NamedTuple):
    """A command that there is not, and those whose names are near."""

    name: str
    near: tuple[str, ...]


Input: TypeAlias = Said | Command | Unknown

# name → what may follow, and what it does
COMMANDS: dict[str, tuple[str, str]] = {
    "help": ("", "this list"),
    "status": ("", "the session, its folder, model and permissions"),
    "context": ("", "what the next request holds, and how full the window is"),
    "skills": ("", "the skills that the model knows of, and what is wrong with others"),
    "compact": ("[FOCUS]", "compact now: a summary takes the place of what the model is sent"),
    "undo": ("", "undo the newest compaction; again, and that is undone"),
    "pin": ("[ADDRESS]", "keep what a record says (without: your newest message) in every later context"),
    "rename": ("NAME", "call the session something else"),
    "fork": ("", "go on in a new session with the same history"),
    "new": ("", "begin a new session"),
    "resume": ("[ID]", "go on with another session; without an ID, pick one"),
    "sessions": ("", "pick a session"),
    "model": ("NAME", "go on with another model"),
    "mode": ("[NAME]", "work in another mode, such as plan; without: which one holds"),
    "personality": ("[TEXT]", "be spoken to in another way: friendly, pragmatic, none, or your words"),
    "quit": ("", "leave (Ctrl-D does, too)"),
}
WHILE_WORKING = frozenset({"help", "status", "context", "skills", "quit"})  # the others need the session to themselves


def read(text: str) -> Input:
    """`/name …` is a command; `//…` is a message that begins with one slash."""
    if text.startswith("//"):
        return Said(text[1:])
    if not text.startswith("/"):
        return Said(text)
    name, _, argument = text[1:].strip().partition(" ")
    if name in COMMANDS:
        return Command(name, argument.strip())
    return Unknown(name, near(name))


def near(name: str) -> tuple[str, ...]:
    """Commands that may have been meant."""
    from difflib import get_close_matches

    begun = [known for known in COMMANDS if name and known.startswith(name)]
    return tuple(dict.fromkeys([*begun, *get_close_matches(name, COMMANDS, n=3, cutoff=0.5)]))


def completed(text: str) -> str | None:
    """A beginning of a command, completed; None when there is nothing to complete."""
    if not text.startswith("/") or " " in text:
        return None
    fitting = [name for name in COMMANDS if name.startswith(text[1:])]
    return f"/{fitting[0]}{' ' if COMMANDS[fitting[0]][0] else ''}" if len(fitting) == 1 else None
