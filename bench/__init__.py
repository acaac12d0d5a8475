"""Benchmarks: every figure that README or docs quote, measured beside a bare loop on the same scripted provider.

`python -m bench` runs all of them and prints one table; `python -m bench NAME …` some. Figures are ratios of one run:
absolute numbers say more about the machine than about refold.
"""
