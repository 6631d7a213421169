"""Where a request may go that gives way to others: only where these leave room. Pure."""

from msgspec.structs import replace

from app.routing.candidates import Ask, Candidate, Option
from app.routing.cost import held_blocks, new_blocks

FULL = 0.9  # share of its blocks from which on an engine gets no more of them: answers grow


def has_slack(ask: Ask, option: Option) -> bool:
    """Whether the place can do with one more of them, without anybody else noticing."""
    c = option.candidate
    if c.waiting or c.aside >= c.lease.load.aside_most:
        return False
    everybody = held_blocks(behind_all(c))
    # What is too large for that runs where nothing else does.
    return everybody + new_blocks(ask, option) <= FULL * c.lease.worker.total_blocks or not (c.requests or c.aside)


def behind_all(c: Candidate) -> Candidate:
    """The place as such a request sees it: behind all that are there."""
    return replace(c, requests=c.requests + c.aside, blocks=c.blocks + c.aside_blocks, aside=0, aside_blocks=0)
