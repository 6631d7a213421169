"""Generated text into reasoning, content and tool calls, for every family of models.

An `OutputParser` reads by a `Dialect`, which has a family's markers of reasoning and its forms of calls; `families.py`
has all dialects, `names.py` finds one. A form is a file of its own: its parameters, and how it is read. A family with a
known form is a few lines in `families.py`.
"""
