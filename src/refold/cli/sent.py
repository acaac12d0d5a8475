"""Sent: the requests of a session, made again from its log; one of them whole, or beside another one."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from refold.cli.look import escaped, find
from refold.cli.options import one_session
from refold.cli.style import paint
from refold.core.jsonio import dump, load
from refold.errors import RolloutNotFound
from refold.rollout.reader import read_lines
from refold.views.sent import Sent, common_prefix
from refold.views.sent import sent as sent_of

CONTEXT_LINES = 3  # of a diff
COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@click.command()
@one_session()
@click.option("--sampling", type=int, metavar="N", help="Print the body of request N, byte for byte.")
@click.option("--diff", "other", type=int, metavar="M", help="With --sampling: how request M differs from N.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a request, for programs.")
def sent(reference: str, sampling: int | None, other: int | None, as_json: bool) -> int:
    """Show every request that a session sent, made again from its log; a hash says whether it is the same.

    Exit code 1 when one is not what went out.
    """
    if other is not None and sampling is None:
        raise click.UsageError("--diff M compares with a request: give --sampling N too")
    path = find(reference)
    if sampling is None:
        return _listed(sent_of(read_lines(path)), as_json)
    wanted = [number for number in (sampling, other) if number is not None]
    found = {one.number: one for one in sent_of(read_lines(path)) if one.number in wanted}
    for number in wanted:
        if number not in found:
            raise RolloutNotFound(f"{path.name} has no request {number}; refold sent {reference} lists them")
    one = found[sampling]
    if other is not None:
        return _compared(one, found[other])
    sys.stdout.flush()
    sys.stdout.buffer.write(one.request.body())
    sys.stdout.buffer.flush()
    if not one.is_same:
        print(f"refold: request {one.number} is not what went out: its hash differs", file=sys.stderr)
    return 0 if one.is_same else 1


def _listed(requests: Iterator[Sent], as_json: bool) -> int:
    same, before = True, b""
    for one in requests:
        body = one.request.body()
        shared = common_prefix(before, body)
        same, before = same and one.is_same, body
        print(dump(_told(one, shared)).decode() if as_json else _row(one, shared), flush=True)
    if not before and not as_json:
        print("no request is recorded in this session", file=sys.stderr)
    return 0 if same else 1


def _told(one: Sent, shared: int) -> dict[str, Any]:
    recorded = msgspec.to_builtins(one.recorded)
    about = {"number": one.number, "address": one.address, "turn_id": one.turn_id, "model": one.model}
    return {**about, **recorded, "same": one.is_same, "common_prefix": shared}


def _row(one: Sent, shared: int) -> str:
    size = one.recorded.size
    dropped = f", {one.recorded.dropped} left out" if one.recorded.dropped else ""
    verdict = paint("same", "green") if one.is_same else paint("differs from what went out", "red")
    head = f"{one.number:>4}  {one.recorded.kind:<10}  {one.model}"
    kept = f"begins with {shared:,} bytes of the one before ({100 * shared // max(1, size)} %)"
    return f"{head}  {one.recorded.items:,} items{dropped}, {size:,} bytes, {kept}  {verdict}"


def _compared(one: Sent, other: Sent) -> int:
    """Where the two bodies part, and what differs behind that, item by item."""
    left, right = one.request.body(), other.request.body()
    shared = common_prefix(left, right)
    print(f"requests {one.number} and {other.number}: {len(left):,} and {len(right):,} bytes, {shared:,} in common")
    names = (f"request {one.number}", f"request {other.number}")
    lines = difflib.unified_diff(_pretty(left), _pretty(right), *names, lineterm="", n=CONTEXT_LINES)
    for line in lines:
        style = COLOURS.get(line[:1])
        print(paint(escaped(line), style) if style else escaped(line))
    return 0 if one.is_same and other.is_same else 1


def _pretty(body: bytes) -> list[str]:
    value, _ = load(body)
    return msgspec.json.format(dump(value), indent=2).decode().splitlines()
