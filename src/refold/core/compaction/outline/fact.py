"""Fact: one line to be, with the address of its record."""

from __future__ import annotations

import msgspec


class Fact(msgspec.Struct, frozen=True, gc=False):
    """One line to be: the address of its record, its words, and an ending that is kept when the words are cut."""

    address: str
    text: str
    ending: str = ""


class Found(msgspec.Struct, frozen=True, gc=False):
    """The facts of one kind; `unread`: there may be more in older records, which nobody needed to read."""

    facts: list[Fact]
    unread: bool = False
