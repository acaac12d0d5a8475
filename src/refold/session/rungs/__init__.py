"""Rungs: the ways to compact, one file each; `session/ladder.py` says in which order they are tried."""
