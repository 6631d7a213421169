"""Checks of one engine as it is: answers, its cache, an answer that goes on, a grammar."""

import re
from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from app.kv.groups import grid
from app.messages.job import Grammar, PartialOutput
from app.messages.lease import CacheGroup
from ops.models.audit import audit, prompts
from ops.models.cell import Cell, right, untried, wrong
from ops.models.loaded import Loaded, answer, difference, request, tokens_of
from workers.engine.kv_indices import why_unindexed

LONG = [(number * 37) % 40_000 + 100 for number in range(700)]
_WORD = "(red|green|blue), [0-9]{2}"
_BROKEN_OFF = 7  # tokens before an answer goes on


async def answers(it: Loaded) -> Cell:
    tokens = tokens_of(await answer(it.engine, request(LONG[::-1], 12)))
    return right() if len(tokens) == 12 else wrong(f"{len(tokens)} tokens of 12")


async def from_cache(it: Loaded) -> Cell:
    first, second = [await answer(it.engine, request(LONG)) for _ in range(2)]
    if mismatch := difference(first, second, it.dtype):
        return wrong(mismatch)
    return right() if second[0].cached_tokens else untried("nothing is cached")


async def foretold(it: Loaded, audited: int, lengths: Sequence[int] = (4,)) -> Cell:
    """Audits `audited` prompts against what the index says before each. `lengths`: of answers, in turn."""
    groups = groups_of(it)
    why = why_unindexed(it.info)
    if why or grid(groups) is None or not it.engine.kv_events():
        return untried(why or "it tells nothing of its cache")
    result = await audit(it, groups, prompts(Random(7), audited), lengths)
    if result.unknown:
        return wrong(f"{result.unknown} blocks that the index can't place")
    if result.wrong:
        return wrong(f"{result.wrong} of {audited} prompts wrong, by {result.off} tokens")
    if not result.cached:
        return untried("nothing is cached")
    return right(f"{audited}" + ("" if result.evicted else ", none evicted"))


async def goes_on(it: Loaded) -> Cell:
    """Continues an answer as after a worker's end, in the same engine: the rest has to be that of the whole answer."""
    whole = await answer(it.engine, request(LONG[:500], 24))
    tokens, text = tokens_of(whole), "".join(step.text for step in whole)
    partial_outputs = [PartialOutput(tokens[:_BROKEN_OFF], 0)]
    rest = await answer(it.engine, replace(request(LONG[:500], 24), begun=partial_outputs))
    behind = [step for step in whole if step.tokens][_BROKEN_OFF:]
    if mismatch := difference(behind, rest, it.dtype):
        return wrong(mismatch)
    same = tokens_of(behind) == tokens_of(rest)
    rest_text = "".join(step.text for step in rest)
    return right() if not same or rest_text == text else wrong("other text")


async def structured(it: Loaded) -> Cell:
    grammar_request = request(LONG[:40], 16, grammar=Grammar("regex", _WORD), ignore_eos=False)
    text = "".join(step.text for step in await answer(it.engine, grammar_request))
    return right() if re.fullmatch(_WORD, text) else wrong(f"{text!r} for {_WORD}")


def groups_of(it: Loaded) -> list[CacheGroup]:
    return list(it.info.groups) or [CacheGroup(0, "all", it.info.block_size)]
