"""The rules of the house (CONTRIBUTING.md), read from the source: imports, purity, length, first sentences."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src"
LONGEST_MODULE = 400  # lines; beyond that a module holds more than one noun

EDGES = frozenset({"model", "rollout", "tools", "observe"})
BELOW_FACES = frozenset({"errors", "core", "session", "views"}) | EDGES
ROOT = "the package root"  # `refold` itself: it imports what it publishes, so only faces may import it

MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "core": frozenset({"errors"}),
    **{edge: frozenset({"errors", "core"}) for edge in EDGES},
    "session": frozenset({"errors", "core"}) | EDGES,
    "views": frozenset({"errors", "core", "rollout"}),
    "testing": frozenset({"errors", "core", "model"}),
    "cli": BELOW_FACES | {"testing", ROOT},  # testing: the demo plays against the shipped server
    "tui": BELOW_FACES | {ROOT},
    "server": BELOW_FACES | {ROOT},
    ROOT: BELOW_FACES,
    "__main__": frozenset({"cli"}),
}

PURE = frozenset({"core", "views"})
READS_FILES = "refold.core.templates"  # the one loader: model-visible texts are files, not strings in code
PURE_THIRD_PARTY = frozenset({"msgspec"})
IO_MODULES = frozenset(
    """
    _thread asyncio builtins concurrent contextvars ctypes dbm fcntl fileinput ftplib getpass glob http imaplib
    importlib io locale logging mmap multiprocessing ntpath os pathlib pkgutil platform poplib posix posixpath
    pty queue random readline resource runpy sched secrets select selectors shelve shutil signal smtplib socket
    socketserver sqlite3 ssl subprocess syslog tempfile termios threading time tty webbrowser
    """.split()  # noqa: SIM905 (a list of words reads better than a list of strings)
)
IO_SUBMODULES = frozenset({"urllib.request", "urllib.robotparser", "xmlrpc.client", "xmlrpc.server"})
IO_CALLS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval", "compile", "__import__"})
IO_METHODS = frozenset({"read_text", "read_bytes", "write_text", "write_bytes"})
CLOCK_METHODS = frozenset({"now", "today", "utcnow"})
PURE_OF_UUID = frozenset(
    {"UUID", "uuid3", "uuid5", "NAMESPACE_DNS", "NAMESPACE_URL", "NAMESPACE_OID", "NAMESPACE_X500"}
)
PURE_OF_SYS = frozenset({"intern", "maxsize", "maxunicode", "byteorder", "version_info", "getsizeof"})


class Module(NamedTuple):
    """One source file: its dotted name, whether it is a package's __init__, and its text."""

    name: str
    is_package: bool
    text: str

    @property
    def room(self) -> str:
        return room_of(self.name)

    @property
    def tree(self) -> ast.Module:
        return parsed(self.text, self.name)


class Import(NamedTuple):
    """One imported thing: its line, the module it is looked up in, the name taken from it ('' for a plain import)."""

    line: int
    module: str
    name: str

    @property
    def target(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


@cache
def parsed(text: str, name: str) -> ast.Module:
    return ast.parse(text, name)


def room_of(dotted: str) -> str:
    """`refold.core.items` → `core`; `refold` → the root."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else ROOT


def imports(module: Module) -> Iterator[Import]:
    """Every import wherever it stands: in a function too, under TYPE_CHECKING, and importlib.import_module("…")."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=names):
                yield from (Import(node.lineno, alias.name, "") for alias in names)
            case ast.ImportFrom(module=source, names=names, level=level):
                origin = absolute(module, source or "", level)
                yield from (Import(node.lineno, origin, alias.name) for alias in names)
            case ast.Call(func=function, args=[ast.Constant(value=str(dotted)), *_]) if called(function) in {
                "import_module",
                "__import__",
            }:
                yield Import(node.lineno, dotted, "")


def absolute(module: Module, source: str, level: int) -> str:
    """The dotted name that a relative import (`level` dots, then `source`) means inside `module`."""
    if not level:
        return source
    up = level - 1 if module.is_package else level
    parts = module.name.split(".")
    return ".".join([*parts[: len(parts) - up], *([source] if source else [])])


def called(function: ast.expr) -> str:
    """The last name of what is called: `open`, `datetime.now` → `now`."""
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def wrong_imports(module: Module) -> Iterator[str]:
    """Imports of a room that this module's room may not know."""
    if module.room not in MAY_IMPORT:
        yield f"{module.name}: {module.room!r} is no room of the house"
        return
    for found in imports(module):
        top = found.module.split(".")[0]
        if top != "refold" or (found.module, found.name) == ("refold", "__version__"):
            continue
        room = room_of(found.target)
        if found.module == "refold" and room not in MAY_IMPORT:
            room = ROOT  # `from refold import Session`: a public name, not a room
        if room != module.room and room not in MAY_IMPORT[module.room]:
            yield f"{module.name}:{found.line}: {module.room} may not import {found.target} ({room})"


def impurities(module: Module) -> Iterator[str]:
    """I/O, clocks, randomness and awaits in a room that is pure."""
    if module.room not in PURE:
        return
    yield from waits(module)
    if module.name == READS_FILES:
        return
    for found in imports(module):
        if reason := impure_import(module.room, found):
            yield f"{module.name}:{found.line}: {module.room} is pure: {reason}"
    for node in ast.walk(module.tree):
        if reason := impure_use(node):
            yield f"{module.name}:{node.lineno}: {module.room} is pure: {reason}"


def waits(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        match node:
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield f"{module.name}:{node.lineno}: {module.room} is pure: it does not await"
            case ast.comprehension(is_async=1, iter=source):
                yield f"{module.name}:{source.lineno}: {module.room} is pure: it does not await"


def impure_import(room: str, found: Import) -> str:
    """Why an import does not belong in a pure room, or ''."""
    top = found.module.split(".")[0]
    if top == "refold":
        return ""
    if top in IO_MODULES or found.module in IO_SUBMODULES or found.target in IO_SUBMODULES:
        return f"it does not import {found.target}"
    if top not in sys.stdlib_module_names and top not in PURE_THIRD_PARTY:
        return f"it imports the standard library and msgspec only, not {top}"
    if top == "uuid" and (room != "core" or (found.name and found.name not in PURE_OF_UUID)):
        return f"{found.target}: of uuid only uuid5 in core, other ids are arguments"
    if top == "sys" and found.name and found.name not in PURE_OF_SYS:
        return f"it does not import {found.target}"
    return ""


def impure_use(node: ast.AST) -> str:
    """Why an expression does I/O or asks for the time or an id, or ''."""
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in IO_CALLS:
            return f"it does not call {name}()"
        case ast.Call(func=ast.Attribute(attr=name)) if name in CLOCK_METHODS:
            return f"the time is an argument, not {name}()"
        case ast.Call(func=ast.Attribute(attr=name)) if name in IO_METHODS:
            return f"it does not call {name}()"
        case ast.Attribute(value=ast.Name(id="uuid"), attr=name) if name not in PURE_OF_UUID:
            return f"ids are arguments, not uuid.{name}"
        case ast.Attribute(value=ast.Name(id="sys"), attr=name) if name not in PURE_OF_SYS:
            return f"it does not use sys.{name}"
    return ""


def length(module: Module) -> Iterator[str]:
    lines = len(module.text.splitlines())
    if lines > LONGEST_MODULE:
        yield f"{module.name}: {lines} lines (at most {LONGEST_MODULE})"


def missing_sentence(module: Module) -> Iterator[str]:
    """A module starts with a docstring whose first line is a sentence about it."""
    first = (ast.get_docstring(module.tree) or "").partition("\n")[0]
    if len(first.split()) < 2:
        yield f"{module.name}: no docstring that says what it is"


@cache
def house() -> list[Module]:
    """Every module under src/refold."""
    modules: list[Module] = []
    for path in sorted((SOURCE / "refold").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(Module(name, is_package, path.read_text(encoding="utf-8")))
    return modules


# --- the house ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [wrong_imports, impurities, length, missing_sentence], ids=lambda rule: rule.__name__)
def test_house_keeps_the_rule(rule):
    faults = [fault for module in house() for fault in rule(module)]
    assert not faults, "\n" + "\n".join(faults)


def test_every_room_of_the_design_is_there():
    assert {module.room for module in house()} >= MAY_IMPORT.keys() - {"__main__"}


def test_every_folder_of_the_house_is_a_package():
    folders = {path.parent for path in (SOURCE / "refold").rglob("*.py")}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").is_file()]


# --- the checker ----------------------------------------------------------------------------------


def module(name: str, text: str, *, is_package: bool = False) -> Module:
    return Module(name, is_package, dedent(text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("refold.errors", "from refold.core.items import Item"),
        ("refold.core.thread", "import refold.session.memory"),
        ("refold.core.thread", "from refold import session"),
        ("refold.core.thread", "from refold import Session"),
        ("refold.core.thread", "import refold"),
        ("refold.core.thread", "from ..model import Model"),
        ("refold.core.compaction.local", "from ...tools.toolbox import Toolbox"),
        ("refold.core.thread", "def lazily():\n    from refold.views import usage"),
        ("refold.core.thread", "if TYPE_CHECKING:\n    from refold.session import Session"),
        ("refold.core.thread", "import importlib\nimportlib.import_module('refold.session.turn')"),
        ("refold.model.responses", "from refold.rollout import Store"),
        ("refold.tools.commands", "from refold.session.turn import run"),
        ("refold.session.turn", "from refold.views.context import context"),
        ("refold.session.turn", "from refold.testing import ResponsesServer"),
        ("refold.session.turn", "from refold.cli import colours"),
        ("refold.views.context", "from refold.model import Model"),
        ("refold.views.context", "from refold.session import Memory"),
        ("refold.testing.server", "from refold.session import Session"),
        ("refold.cli.serve", "from refold.server import app"),
        ("refold.tui.app", "from refold.cli.colours import RED"),
        ("refold.server.app", "from refold.testing import ScriptedModel"),
        ("refold.helpers", "x = 1"),
    ],
)
def test_checker_names_a_wrong_import(name, text):
    assert [*wrong_imports(module(name, text))]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "refold.core.thread",
            "import msgspec\nfrom refold.core.items import Item\nfrom refold.errors import RefoldError",
        ),
        ("refold.core.thread", "from . import items\nfrom .compaction import due"),
        ("refold.core.compaction.local", "from ..items import Item"),
        ("refold.session.turn", "from refold import model, tools\nfrom refold.core import items"),
        ("refold.model.responses", "from refold import __version__"),
        ("refold.views.context", "from refold.rollout.tail import read"),
        ("refold.testing.server", "from refold.model.scripted import ScriptedModel"),
        ("refold.cli.demo", "from refold.testing import ResponsesServer\nfrom refold import Session"),
        ("refold.__main__", "from refold.cli.main import main"),
    ],
)
def test_checker_accepts_a_right_import(name, text):
    assert not [*wrong_imports(module(name, text))]


def test_checker_resolves_relative_imports_from_a_package():
    found = [
        *wrong_imports(module("refold.core", "from .items import Item\nfrom ..tools import tool", is_package=True))
    ]
    assert found == ["refold.core:2: core may not import refold.tools.tool (tools)"]


def test_checker_lets_the_root_publish_but_not_load_a_face():
    root = module("refold", "from refold.session import Session\nfrom refold.cli.main import main", is_package=True)
    assert [*wrong_imports(root)] == [f"refold:2: {ROOT} may not import refold.cli.main.main (cli)"]


@pytest.mark.parametrize(
    "text",
    [
        "async def fold(): ...",
        "async def fold():\n    await something",
        "async def fold():\n    async for x in y: ...",
        "import os",
        "import os.path",
        "from pathlib import Path",
        "import asyncio",
        "import time",
        "def late():\n    import random",
        "import urllib.request",
        "from urllib import request",
        "import httpx2",
        "import uuid\nuuid.uuid4()",
        "from uuid import uuid7",
        "import sys\nsys.stdout.write('x')",
        "from sys import argv",
        "open('x')",
        "print('x')",
        "folder.read_text()",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.date.today()",
    ],
)
@pytest.mark.parametrize("room", sorted(PURE))
def test_checker_names_what_is_not_pure(room, text):
    assert [*impurities(module(f"refold.{room}.some", text))]


@pytest.mark.parametrize(
    "text",
    [
        "import hashlib, json, math, re, functools, collections",
        "from collections.abc import Sequence\nfrom urllib.parse import urlsplit",
        "from datetime import datetime\ndef turn(now: datetime): return now.isoformat()",
        "import uuid\nuuid.uuid5(uuid.NAMESPACE_URL, 'x')",
        "import sys\nsys.intern('type')",
        "import msgspec\nmsgspec.json.decode(b'1')",
    ],
)
def test_checker_accepts_what_is_pure(text):
    assert not [*impurities(module("refold.core.some", text))]


def test_checker_keeps_uuid_out_of_views():
    assert [*impurities(module("refold.views.some", "import uuid"))]


def test_checker_lets_the_edges_do_io():
    assert not [*impurities(module("refold.rollout.files", "import os\nasync def append(): await x"))]


def test_checker_excepts_the_template_loader_from_io_but_not_from_awaiting():
    assert not [*impurities(module(READS_FILES, "from pathlib import Path\nPath('x').read_text()", is_package=True))]
    assert [*impurities(module(READS_FILES, "async def template(): ...", is_package=True))]


def test_checker_names_a_long_module_and_its_length():
    assert not [*length(module("refold.core.some", "x = 1\n" * LONGEST_MODULE))]
    assert [*length(module("refold.core.some", "x = 1\n" * 401))] == ["refold.core.some: 401 lines (at most 400)"]


@pytest.mark.parametrize("text", ["", "x = 1", '"""."""', '"""Usage."""'])
def test_checker_asks_for_a_first_sentence(text):
    assert [*missing_sentence(module("refold.core.usage", text))]


def test_checker_accepts_a_first_sentence():
    assert not [*missing_sentence(module("refold.core.usage", '"""Usage: what a response cost."""'))]
