"""Plain command: shell text that is nothing but words and `&&`, `||`, `;`, `|`, so that it is known what would run.

Rule 1: what is not understood is not plain; whoever asks then gets None, False or nothing to remember.
Rule 2: a shell must read the same words in it as we do: no character is let through that any shell makes more of.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence

import msgspec

SHELLS = frozenset({"bash", "sh", "dash"})  # that read plain text alike
SHELL_FOLDERS = ("/bin", "/usr/bin", "/usr/local/bin")  # in which a command inside a sandbox cannot put one

_PLAIN = frozenset(string.ascii_letters + string.digits + "_@%+=:,./-^")  # a shell takes these as they are


def _table(text: str) -> frozenset[str]:
    """A set of words, written so that it can be read."""
    return frozenset(text.split())


_RESERVED = _table("if then else elif fi case esac for select while until do done in function time coproc { } ! [[ ]]")


class Part(msgspec.Struct, frozen=True):
    """One command of a plain text: its words, the program first. `piped`: it reads what the part before it writes."""

    words: tuple[str, ...]
    piped: bool = False


def understood(shell: str) -> bool:
    """Whether a shell reads text as `parts_of` does: by its bare name, or as the system's own."""
    folder, slash, name = shell.rpartition("/")
    return name in SHELLS and (not slash or folder in SHELL_FOLDERS)


def is_of_the_system(shell: str) -> bool:
    """Whether it is one of these shells, and no command put it there: it may be run with the user's rights."""
    return "/" in shell and understood(shell)


def parts_of(text: str) -> tuple[Part, ...] | None:
    """The commands of a shell text, in order; None when it is more than plain ones."""
    tokens = _tokens(text)
    if tokens is None:
        return None
    parts: list[Part] = []
    words: list[str] = []
    piped = False
    for operator, word in tokens if tokens[-1:] == [_END] else [*tokens, _END]:
        if not operator:
            words.append(word)
            continue
        if not words or _is_no_program(words[0]):
            return None
        parts.append(Part(tuple(words), piped))
        words, piped = [], operator == "|"
    return tuple(parts)


def _is_no_program(word: str) -> bool:
    """Whether a first word is grammar, an assignment, a job or nothing."""
    return not word or word in _RESERVED or "=" in word or word.startswith(("%", "-"))


_END = (";", "")


def _tokens(text: str) -> list[tuple[str, str]] | None:
    """Operators `(operator, "")` and words `("", word)`; None for anything else."""
    found: list[tuple[str, str]] = []
    word: str | None = None
    at = 0
    while at < len(text):
        character = text[at]
        if character in "'\"":
            end = text.find(character, at + 1)
            if end < 0 or not _is_literal(text[at + 1 : end], character):
                return None
            word, at = (word or "") + text[at + 1 : end], end + 1
            continue
        if character in _PLAIN:
            word, at = (word or "") + character, at + 1
            continue
        if word is not None:
            found.append(("", word))
            word = None
        operator = _operator_at(text, at)
        if operator is None:
            return None
        if operator:
            found.append((operator, ""))
        at += len(operator) or 1
    return found if word is None else [*found, ("", word)]


def _operator_at(text: str, at: int) -> str | None:
    """The operator that stands there; empty for a blank, None for what is neither."""
    if text[at] in " \t":
        return ""
    if text.startswith(("&&", "||"), at):
        return text[at : at + 2]
    return text[at] if text[at] in ";|" and not text.startswith(("|&", ";;", ";&"), at) else None


def _is_literal(quoted: str, quote: str) -> bool:
    """Whether quoted text means itself: nothing is expanded in it, and no character of it is invisible."""
    return quoted.isprintable() and (quote == "'" or not any(character in "$`\\" for character in quoted))


# --- what only reads -----------------------------------------------------------------------------------------

BUILTINS = frozenset({"echo", "false", "pwd", "true"})  # of every shell: no file is run for them

_ANY = BUILTINS | _table(
    """
    basename cat cmp cut df dirname du egrep expr fgrep grep head id jq ls md5sum nl nproc od paste readlink
    realpath rev seq sha1sum sha256sum stat strings tac tail tr uname wc which whoami
    """
)
_LINES = re.compile(r"(\d+|\$)(,(\d+|\$))?p")  # a sed script that prints lines
_DATE = re.compile(r"\+.*|-u|-R|--utc|-I(date|hours|minutes|seconds|ns)?")

_GIT_READS = _table(
    "status log diff show rev-parse rev-list ls-files ls-tree blame describe shortlog merge-base cat-file"
)
_GIT_PROGRAMS = ("--output", "--ext-diff", "--textconv", "--filters", "--open-files-in-pager", "--exec")
_GIT_WORDS = {
    "branch": _table("-a -r -v -vv --list --all --remotes --show-current"),
    "remote": _table("-v --verbose"),
}


def reads_only(words: Sequence[str]) -> bool:
    """Whether a plain command is known to do no more than read and print. The program's name has to be bare."""
    if not words:
        return False
    name, arguments = words[0], words[1:]
    check = _CHECKS.get(name)
    return name in _ANY if check is None else check(arguments)


def _has(arguments: Sequence[str], long: Sequence[str] = (), short: str = "") -> bool:
    """Whether an option is among the arguments: a long one also when it is shortened, a short one also in a bundle."""
    for word in arguments:
        name = word.partition("=")[0]
        if word.startswith("--"):
            if len(name) > 2 and any(option.startswith(name) or name == option for option in long):
                return True
        elif word.startswith("-") and any(letter in word for letter in short):
            return True
    return False


def _find(arguments: Sequence[str]) -> bool:
    return not any(word.startswith(("-exec", "-ok", "-delete", "-fprint", "-fls")) for word in arguments)


def _git(arguments: Sequence[str]) -> bool:
    rest = arguments[1:] if arguments[:1] == ("--no-pager",) else arguments
    if not rest:
        return False
    command, options = rest[0], rest[1:]
    if command in _GIT_WORDS:
        return all(word in _GIT_WORDS[command] for word in options)
    return command in _GIT_READS and not _has(options, _GIT_PROGRAMS)


def _rg(arguments: Sequence[str]) -> bool:
    return not _has(arguments, ("--search-zip",), "z") and not any(
        word.startswith(("--pre", "--hostname-bin")) for word in arguments
    )


def _sed(arguments: Sequence[str]) -> bool:
    files = arguments[2:]
    return (
        tuple(arguments[:1]) == ("-n",)
        and len(arguments) > 1
        and _LINES.fullmatch(arguments[1]) is not None
        and not any(word.startswith("-") for word in files)
    )


def _sort(arguments: Sequence[str]) -> bool:
    return not _has(arguments, ("--output", "--compress-program", "--temporary-directory"), "oT")


def _uniq(arguments: Sequence[str]) -> bool:
    files = [word for word in arguments if word == "-" or not word.startswith("-")]
    return len(files) <= 1 and "--" not in arguments  # a second one is written


def _date(arguments: Sequence[str]) -> bool:
    return all(_DATE.fullmatch(word) for word in arguments)


def _tree(arguments: Sequence[str]) -> bool:
    return not _has(arguments, ("--output",), "oR")


def _file(arguments: Sequence[str]) -> bool:
    return not _has(arguments, ("--compile", "--uncompress", "--uncompress-noreport"), "CzZS")


def _diff(arguments: Sequence[str]) -> bool:
    return not _has(arguments, ("--paginate",), "l")


_CHECKS: dict[str, Callable[[Sequence[str]], bool]] = {
    "find": _find,
    "git": _git,
    "rg": _rg,
    "sed": _sed,
    "sort": _sort,
    "uniq": _uniq,
    "date": _date,
    "tree": _tree,
    "file": _file,
    "diff": _diff,
}


# --- what can be remembered ----------------------------------------------------------------------------------

# Programs of many commands: the first word after the program says what it does, unless it is an option.
_MANY = _table(
    """
    apt apt-get brew bun bundle cargo conda deno docker dotnet gh git go helm kubectl npm pip pip3 pipx pnpm podman
    poetry rustup systemctl terraform uv yarn
    """
)
# After these the next word says it: one script, not all of them. `npm run` alone is nothing to remember.
_THREE = {
    "npm": _table("run run-script"),
    "pnpm": _table("run"),
    "yarn": _table("run"),
    "bun": _table("run"),
    "docker": _table("compose"),
    "uv": _table("pip"),
}
# Programs that run what they are given: whoever allows one for good allows everything. Builtins that change what later
# words mean stand here, too.
_RUNS_ANYTHING = _table(
    """
    ash bash busybox csh dash fish ksh nu pwsh sh tcsh zsh R Rscript awk clj erl expect gawk ghci groovy irb ipython
    java jshell julia lua luajit mawk nawk node nodejs osascript perl php pypy pypy3 python python2 python3 ruby
    scala swift tclsh ts-node tsx ed emacs ex gdb nano sed vi vim bunx bwrap chroot doas env find flock ionice
    ltrace nc ncat netcat nice nohup npx nsenter parallel pnpx runuser screen script setsid socat ssh stdbuf strace
    su sudo systemd-run telnet timeout tmux unshare uvx watch xargs . : [ alias bg bind builtin cd command declare
    enable eval exec export fg hash kill let local mapfile popd printf pushd read readarray readonly set shopt
    source test trap type typeset ulimit umask unalias unset wait
    """
)
# The same, as one command of a program of many.
_RUNS_ANYTHING_AS = _table(
    """
    bun/create bun/x bundle/exec cargo/r cargo/run conda/run deno/eval deno/run docker/create docker/exec docker/run
    gh/alias gh/api gh/extension git/bisect git/config git/difftool git/filter-branch git/for-each-repo git/hook
    git/mergetool git/rebase git/remote-ext git/submodule go/generate go/run kubectl/exec kubectl/run npm/config
    npm/create npm/exec npm/init npm/x pipx/run pnpm/create pnpm/dlx pnpm/exec podman/create podman/exec podman/run
    poetry/run uv/run uv/tool uv/x yarn/create yarn/dlx yarn/exec
    """
)
# Options of theirs that name a program to run, or settings that do: `git push --exec=…`, `go test -exec=…`.
_NAMES_A_PROGRAM = (
    "--config",
    "--exec",
    "--ext-diff",
    "--open-files-in-pager",
    "--post-renderer",
    "--receive-pack",
    "--script-shell",
    "--template",
    "--textconv",
    "--toolexec",
    "--upload-pack",
    "--vettool",
)
_VERSIONED = re.compile(r"(python|pypy|perl|ruby|lua|php|node)[\d.]+")


def stands_for_more(words: Sequence[str]) -> bool:
    """Whether words that `prefix_of` chose mean every command that begins with them, not only this one."""
    return bool(words) and words[0].rpartition("/")[2] in _MANY


def prefix_of(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a plain command that a person may allow for good; empty when that would allow too much.

    One word of a program of many commands (`git push`, `npm run test`); of any other program the whole command.
    """
    name = words[0].rpartition("/")[2] if words else ""
    if not name or name in _RUNS_ANYTHING or _VERSIONED.fullmatch(name):
        return ()
    if name not in _MANY:
        return tuple(words)
    length = 3 if len(words) > 1 and words[1] in _THREE.get(name, ()) else 2
    chosen = tuple(words[:length])
    if len(chosen) < length or any(word.startswith("-") or "=" in word for word in chosen[1:]):
        return ()
    if _names_a_program(name, words[1], words[2:]):
        return ()
    return () if f"{name}/{chosen[1]}" in _RUNS_ANYTHING_AS else chosen


def _names_a_program(name: str, command: str, arguments: Sequence[str]) -> bool:
    """Whether one command of a program of many is told what else to run."""
    if name == "git" and (
        any("::" in word for word in arguments) or (command == "clone" and _has(arguments, (), "cu"))
    ):
        return True  # an address like `ext::sh -c …`; short for --config and --upload-pack
    single = {option[1:] for option in _NAMES_A_PROGRAM}  # as `go` writes them
    return _has(arguments, _NAMES_A_PROGRAM) or any(word.partition("=")[0] in single for word in arguments)
