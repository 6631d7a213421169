"""Finds what a request needs of an engine, beyond room."""

from collections.abc import Collection, Mapping

from app.errors import NoWorker, RequestError, XylemError
from app.messages.job import Job, Sampling
from app.messages.lease import Worker
from app.messages.media import MEDIA_NAMES


def unmet_need(job: Job, workers: Collection[Worker], params: Mapping[str, str]) -> XylemError | None:
    """The job's need that none of the workers meets; None: there is no worker, or each need is met by one.

    `params`: by SHA-256 of its media, the names of the request's parts.
    """
    if not workers:
        return None
    grammar = job.sampling.grammar
    if grammar is not None:
        if not any(w.grammars for w in workers):
            return NoWorker("No live worker of this model holds answers to a format. Try again.")
        if not any(grammar.kind in w.grammars for w in workers):
            return RequestError(f"This model's engines hold no answer to a format of the kind '{grammar.kind}'.")
    if job.sampling.beams is not None and not any(w.beams for w in workers):
        return RequestError(
            "use_beam_search: this model's engines tell no logprobs of an answer's tokens, or compute no prompts.",
            param="use_beam_search",
        )
    for media in job.media:
        if not any(media.kind in w.takes for w in workers):
            param = params.get(media.sha256)
            what = "This" if param is None else f"'{param}': this"
            return RequestError(f"{what} model's engines take no {MEDIA_NAMES[media.kind]}.", param=param)
    if is_seeded(job.sampling) and not any(w.seeds for w in workers):
        return RequestError(
            "seed: this model's engines sample differently each time. Leave it out, or set temperature to 0.",
            param="seed",
        )
    return None


def is_seeded(sampling: Sampling) -> bool:
    """Whether a seed counts: at temperature 0 it changes nothing."""
    return sampling.seed is not None and sampling.temperature > 0
