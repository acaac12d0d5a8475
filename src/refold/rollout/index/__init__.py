"""The index: what a list of sessions shows and a search finds, kept beside the files so that they are not read again.

Rule 1: the files are the truth. What the index says of a file counts while its time, size and number are the same.
Rule 2: it is never an error that there is none: who asks goes without, slower.

`Catalogue` is its face. It imports the modules that need sqlite3 when it is asked for what they hold.
"""

from __future__ import annotations

from refold.rollout.index.summary import Summary, summary_of

__all__ = ["Summary", "summary_of"]
