"""Lines: record → JSON line(s) and back; the one place that knows a rollout's spelling (docs/rollout.md).

Public names: encode (write.py); decode, has_ordinal, mattering, ordinal_of, skimmed (read.py).
"""

from __future__ import annotations

from refold.core.lines.read import decode, has_ordinal, mattering, ordinal_of, skimmed
from refold.core.lines.write import encode

__all__ = ["decode", "encode", "has_ordinal", "mattering", "ordinal_of", "skimmed"]
