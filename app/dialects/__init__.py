"""Generated text into reasoning, content and tool calls, for every family of models.

An `OutputParser` reads by a `Dialect`, which says with what markers a family sets reasoning apart and in which forms it
writes calls; `families.py` has all of them, `names.py` finds one. A form is a file of its own: what can be declared of
it, and how it is read. A family with a form that is known is a few lines there.
"""
