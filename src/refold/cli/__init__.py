"""FACE: the command line. `main` maps words to commands, which are imported when they are used.

run, resume, fork, compact → act.py; show, context, sessions → look.py; demo → demo.py; what a turn shows → live.py (for
people) and json_events.py (for programs).
"""
