"""Generated text into reasoning, content and tool calls, for every family of models."""
