"""Outline: what happened, taken from the log by rules and without a model, each line with its record's address.

facts (what the entries say) → earlier (what an older summary still adds) → page (sections within a budget).
"""

from refold.core.compaction.outline.page import outline

__all__ = ["OUTLINE_PART", "OUTLINE_TOKENS", "outline"]

OUTLINE_TOKENS = 8_000  # of facts that take a history's place,
OUTLINE_PART = 4  # and at most one part in so many of what fills a window
