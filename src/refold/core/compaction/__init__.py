"""Compaction: when it is due, what it asks, and what takes the history's place. Each method is two pure functions.

`due` decides; `local` asks for a summary and settles it; `replacement` knows where re-injected context goes.
"""
