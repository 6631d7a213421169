"""A simulator of a continuous-batching engine; README.md says what it models and what not."""
