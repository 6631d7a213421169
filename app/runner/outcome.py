"""The end of a run, for whoever watches tasks: no text of the answer, nothing of the prompt."""

from msgspec import Struct

from app.errors import XylemError
from app.messages.job import Job

_DONE = "done"  # the finish of what has none of its own: vectors, a painting, a prompt computed for another worker


class Outcome(Struct):
    """Knows of a run what may be shown, so far."""

    model: str  # as the pools file names it
    adapter: str | None = None
    prompt_tokens: int = 0
    answer_tokens: int = 0  # of all choices, and of the attempts before
    finishes: list[str] = []  # of its choices
    error: XylemError | None = None

    def begins(self, job: Job) -> None:
        self.adapter, self.prompt_tokens = job.adapter, len(job.prompt) + job.encoder_tokens
        self.answer_tokens = sum(len(output.tokens) for output in job.begun)

    def shown(self) -> str:
        """The result of its task, as Celery's events have results: Python's text of it."""
        finish = ", ".join(dict.fromkeys(self.finishes)) or _DONE
        fields = {
            "model": self.model,
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
            "finish": finish if self.error is None else self.error.code,
        }
        return repr(fields if self.adapter is None else fields | {"adapter": self.adapter})
