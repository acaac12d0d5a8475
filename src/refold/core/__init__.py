"""PURE: what a session's memory is and how it changes. No await, clock, random, file or network.

items → records → lines (a record's spelling) → thread (the fold) → prompt → wire; beside them history (passes),
tokens, truncate, profile, world (rules in force), fragments (their tags) and compaction.
"""
