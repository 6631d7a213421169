"""Grammars that answers are held to: what of them can be enforced, and how llguidance takes them.

The API checks grammars so, and the mock engine obeys them so. vLLM compiles them itself, with xgrammar.
"""
