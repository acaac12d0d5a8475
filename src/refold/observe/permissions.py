"""Permissions: what commands may do and who is asked, from what the session says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.core.world import World, permissions_state, permissions_text

if TYPE_CHECKING:
    from refold.observe import Looking


def see_permissions(looking: Looking) -> World:
    where = looking.where
    if not where.tell_permissions:
        return World({})
    text = permissions_text(
        where.sandbox_mode,
        where.approval_policy,
        writable_roots=where.writable_roots,
        network=where.network,
        reviewer=where.reviewer,
    )
    return World({"permissions": permissions_state(text, where.approved)}, {"permissions": text})
