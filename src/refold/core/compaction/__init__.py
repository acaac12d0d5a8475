"""Compaction: when it is due, what it asks, and what takes the history's place. Each method is two pure functions.

`due` decides; `local` asks for a summary and settles it, `remote` has the provider compact, `outline` tells what the
log says, without a model; `replacement` knows where re-injected context goes.
"""
