"""A simulator of a continuous-batching engine; README.md lists what it models and what it doesn't."""
