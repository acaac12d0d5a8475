"""Outline: what happened, taken from the log by rules and without a model, each line with its record's address.

facts (what the entries say) → earlier (what an older summary still adds) → page (sections within a budget).
"""

from refold.core.compaction.outline.page import outline

__all__ = ["outline"]
