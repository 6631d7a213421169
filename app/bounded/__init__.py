"""Runs native code on a client's data, in processes that may die of it: bounded, and taken in turns by clients.

Pictures and sounds are decoded so (`app/media/`), grammars compiled (`app/grammars/`).
"""
