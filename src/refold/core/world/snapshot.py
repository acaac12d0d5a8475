"""Snapshot: what a log holds of a world: a full one, then merge patches (RFC 7386), and hashes of what was told."""

from __future__ import annotations

import hashlib
from typing import Any

from refold.core.jsonio import JSON, is_object


def merge_patch(target: Any, patch: Any) -> Any:
    """The target with a merge patch applied: null deletes, objects merge, everything else replaces."""
    if not is_object(patch):
        return patch
    result = dict(target) if is_object(target) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def diff_patch(before: Any, after: Any) -> Any:
    """The merge patch that turns `before` into `after`; {} when they are equal."""
    if not (is_object(before) and is_object(after)):
        return after
    patch: JSON = {key: None for key in before if key not in after}
    for key, value in after.items():
        if key not in before:
            patch[key] = value
        elif before[key] != value:
            patch[key] = diff_patch(before[key], value)
    return patch


def fragment_hash(role: str, text: str) -> str:
    """The real program's hash of a fragment (spec §7.3), so that it sees whether ours changed."""
    digest = hashlib.sha1(b"codex-world-state-fragment-v1\0", usedforsecurity=False)
    for part in (role, text.replace("\r\n", "\n")):
        encoded = part.encode("utf-8", "replace")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()
