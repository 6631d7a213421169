"""Grammars of answers: whether they can be enforced, and their form for llguidance.

The API checks grammars with llguidance, in processes that may die of it (`checker.py`), and the mock engine enforces
them with it. vLLM compiles them itself, with xgrammar.
"""
