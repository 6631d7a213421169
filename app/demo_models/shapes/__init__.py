"""Models of shapes: one that sees, one that paints."""

# The file that a finished folder of theirs has: another number for other weights, so that old folders are made anew.
# `app/cli/stack.py` has it too.
PROOF = "weights-2"
