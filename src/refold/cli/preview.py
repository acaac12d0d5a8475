"""Preview: a compaction that is only looked at, on the terminal and as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from refold.cli.look import COLOURS
from refold.cli.style import gauge, money, paint
from refold.core.jsonio import dump
from refold.views.context import ContextRow
from refold.views.preview import preview_rows

if TYPE_CHECKING:
    from refold.session.preview import Previewed
    from refold.session.session import Session


def show_preview(session: Session, preview: Previewed, *, as_json: bool) -> None:
    """What the next request would hold, what it would no longer hold, and what finding that out cost."""
    if as_json:
        _print_json(preview)
        return
    rows, profile = preview_rows(preview.items, preview.addresses, preview.gone), session.memory.profile
    width = max((len(row.address) for row in (*rows.new, *rows.gone)), default=3)
    made = sum(not row.address for row in rows.new)
    print(f"{paint(session.id, 'cyan')}  {profile.slug}  {paint('preview: nothing is changed', 'yellow')}")
    print(paint(f"the context would be ({preview.method}): {len(rows.new)} items, {made} of them new", "bold"))
    for row in rows.new:
        print(_line(row, width))
    if rows.summary:
        print(paint("its summary:", "bold"))
        print("\n".join(f"    {line}" for line in rows.summary.splitlines()))
    print(paint(f"no longer in it: {len(rows.gone)} items, {rows.gone_tokens:,} tokens", "bold"))
    for row in rows.gone:
        print(_line(row, width))
    if rows.gone:
        print(paint("the log keeps them: refold show ADDRESS", "dim"))
    if preview.dropped:
        print(paint(f"{preview.dropped} items did not fit into the request for it", "yellow"))
    print(f"{preview.before:,} → {preview.after:,} tokens")
    print(gauge(preview.after, profile.context_window, preview.limit))
    print(paint(_cost(preview), "dim"))


def _print_json(preview: Previewed) -> None:
    told = {
        "type": "refold.compaction.preview",
        "method": preview.method,
        "tokens_before": preview.before,
        "tokens_after": preview.after,
        "limit": preview.limit,
        "items_dropped": preview.dropped,
        "items": list(preview.items),
        "addresses": list(preview.addresses),
        "gone": msgspec.to_builtins(preview.gone),
        "usage": msgspec.to_builtins(preview.usage),
        "cost": preview.cost,
    }
    sys.stdout.write(dump(told).decode() + "\n")
    sys.stdout.flush()


def _line(row: ContextRow, width: int) -> str:
    """One item; on top of its kind it says when it is a summary."""
    kind = "summary" if row.origin == "summary" else row.kind
    address = paint(f"{row.address or 'new':<{width}}", "dim")
    return f"{address}  {paint(f'{kind:<22}', COLOURS.get(kind, 'dim'))} {row.tokens:>8,}  {row.preview[:90]}"


def _cost(preview: Previewed) -> str:
    used = preview.usage
    tokens = f"{used.input_tokens:,} tokens in ({used.cached_input_tokens:,} cached), {used.output_tokens:,} out"
    return f"asking for it used {tokens}" + ("" if preview.cost is None else f", cost {money(preview.cost)}")
