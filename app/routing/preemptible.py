"""Decides where an aside request may be placed: only where online requests leave room. Pure."""

from msgspec.structs import replace

from app.routing.candidates import Ask, Candidate, Option
from app.routing.cost import held_blocks, new_blocks

FULL = 0.9  # share of used blocks at which an engine gets no more aside requests, since answers grow


def has_slack(ask: Ask, option: Option) -> bool:
    """Whether the place can take one more aside request without delaying online ones."""
    c = option.candidate
    if c.waiting or c.aside >= c.lease.load.aside_most:
        return False
    everybody = held_blocks(behind_all(c))
    # A request that is too large for that may run alone.
    return everybody + new_blocks(ask, option) <= FULL * c.lease.worker.total_blocks or not (c.requests or c.aside)


def behind_all(c: Candidate) -> Candidate:
    """The place as an aside request sees it: all requests there come first."""
    return replace(c, requests=c.requests + c.aside, blocks=c.blocks + c.aside_blocks, aside=0, aside_blocks=0)
