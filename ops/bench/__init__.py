"""Benchmarks: `make bench NAME=serve`.

Two systems are up at the same time, in processes of their own, and take the same load in turns: A B A B …
Figures are medians, ratios are taken pair by pair, and every report says how quiet the machine was.
"""
