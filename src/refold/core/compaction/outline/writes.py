"""Writes: the paths that a shell text or a patch says it writes, and by which word; what is not sure is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

Write: TypeAlias = tuple[str, str]  # a path as it was written down, and what wrote it

READ = 20_000  # characters of one text that are looked at: a longer one is data, not a command

_PATCH = re.compile(r"^\*\*\* (Update|Add|Delete) File: (.+)$|^\*\*\* (Move) to: (.+)$", re.MULTILINE)
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)(\w+)\1")
_MAY_WRITE = re.compile(r">|\b(?:tee|sed|perl|mv|cp|ln|install|mkdir|rmdir|rm|unlink|touch|truncate|git)\b")
_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r]+|\\\n)
    |(?P<to>(?:\d|&)?>>?\|?(?:&\d?-?)?)
    |(?P<read><[<&]*)
    |(?P<end>[\n;()]|&&|&|\|\|?)
    |(?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\;&|()<>])+)
    |(?P<odd>.)""",
    re.VERBOSE | re.DOTALL,
)
_PIECE = re.compile(r"'([^']*)'|\"((?:\\.|[^\"\\])*)\"|\\(.)|([^'\"\\]+)", re.DOTALL)
_ASSIGNMENT = re.compile(r"\w+=")
_BEFORE_A_PROGRAM = frozenset({"sudo", "env", "time", "nohup", "command", "exec", "then", "do", "else", "!", "{"})
_ALL_ARGUMENTS = frozenset({"tee", "mv", "mkdir", "rmdir", "rm", "unlink", "touch", "truncate"})
_LAST_ARGUMENT = frozenset({"cp", "ln", "install"})
_GIT_WRITES = frozenset({"add", "mv", "rm"})
_NO_FILES = ("/dev/", "/proc/")
_COMPARES = frozenset({"[[", "[", "((", "test"})


def patched(text: str) -> list[Write]:
    """The files that a patch names, in order."""
    if "*** " not in text:
        return []
    found = _PATCH.finditer(text)
    return [((m[2] or m[4]).strip(), f"patch: {(m[1] or m[3]).lower()}") for m in found if (m[2] or m[4]).strip()]


def written(command: str) -> list[Write]:
    """The paths that a shell text writes, in order, each with the word that does it; a patch in it counts, too."""
    command = command[:READ]
    if _MAY_WRITE.search(command) is None:
        return patched(command)
    found = patched(command)
    for words, targets in _commands(_without_documents(command)):
        if words and words[0] in _COMPARES:
            continue
        found += [(path, ">") for path in targets]
        found += _by_program(words)
    kept = ((path.removeprefix("./"), how) for path, how in found)
    return [(path, how) for path, how in kept if _is_path(path)]


def _without_documents(command: str) -> str:
    """The text without what stands between `<<WORD` and `WORD`: that is data."""
    if "<<" not in command:
        return command
    kept: list[str] = []
    ends: list[str] = []
    for line in command.split("\n"):
        if ends:
            ends = ends[1:] if line.strip() == ends[0] else ends
        else:
            ends = [found[2] for found in _HEREDOC.finditer(line)]
            kept.append(_HEREDOC.sub(" ", line))
    return "\n".join(kept)


def _commands(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """The words of each command, its program first, and what its output goes to."""
    words: list[str] = []
    targets: list[str] = []
    awaited = ""  # the redirection whose target comes next
    for token in _TOKEN.finditer(text):
        kind, raw = token.lastgroup, token[0]
        if kind == "word":
            word = _unquoted(raw)
            if awaited == "to":
                targets.append(word)
            elif not awaited and (words or not _is_before_a_program(raw)):
                words.append(word)
            awaited = ""
        elif kind == "to":
            arrow = text[token.start() - 1 : token.start()] in ("-", "=")  # `->` and `=>` are no redirections
            awaited = "" if "&" in raw[1:] or arrow else "to"
        elif kind == "read":
            awaited = "read"
        elif kind == "end":
            yield words, targets
            words, targets, awaited = [], [], ""
    yield words, targets


def _is_before_a_program(raw: str) -> bool:
    return raw in _BEFORE_A_PROGRAM or _ASSIGNMENT.match(raw) is not None


def _unquoted(raw: str) -> str:
    """A word without its quotes; one in which the shell would put something else keeps its sign and is no path."""
    if raw.isalnum():
        return raw
    return "".join("".join(part for part in piece if part) for piece in _PIECE.findall(raw))


def _by_program(words: Sequence[str]) -> list[Write]:
    if not words:
        return []
    program = words[0].rpartition("/")[2]
    how, rest = program, list(words[1:])
    if program == "git":
        if not rest or rest[0] not in _GIT_WRITES:
            return []
        how, paths = f"git {rest[0]}", _plain(rest[1:])
    elif program in ("sed", "perl"):
        how, paths = f"{program} -i", _edited(rest)
    elif program in _ALL_ARGUMENTS:
        paths = _plain(rest)
    elif program in _LAST_ARGUMENT:
        paths = _plain(rest)[1:][-1:]
    else:
        return []
    return [(path, how) for path in paths]


def _plain(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith("-")]


def _edited(words: Sequence[str]) -> list[str]:
    """The files that sed or perl changes in place: what comes after the script."""
    options = [word for word in words if word.startswith("-")]
    if not any(word.startswith("--in-place") or ("i" in word and not word.startswith("--")) for word in options):
        return []
    files: list[str] = []
    given = skip = False  # whether the script was given by an option; whether this word belongs to the last one
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-"):
            if word in ("--expression", "--file") or (not word.startswith("--") and word.endswith(("e", "f"))):
                given = skip = True
        else:
            files.append(word)
    return files if given else files[1:]


def _is_path(path: str) -> bool:
    """Whether a word is surely the name of something that was written."""
    return path not in ("", ".", "..", "*", "-") and not path.startswith(_NO_FILES) and not set(path) & set("$`\n")
