"""`xylem replay`: a trace sent to any OpenAI-compatible server, with what its user sees measured."""
