"""Abilities of engines: none is asked for a grammar, a seed or a prompt that it can't do."""

from random import Random
from typing import Any

import msgspec
import pytest

from app.errors import NoWorker, RequestError
from app.ids import PoolId
from app.messages.job import Grammar, PartialOutput, Sampling
from app.messages.kinds import GrammarKind, Role
from app.messages.lease import Worker, decode_lease
from app.messages.wire import encode
from app.routing.candidates import Candidate, PlaceLimits
from tests.jobs import POOL, in_flight, job, placing
from tests.leases import candidate
from tests.models import mock
from tests.refusals import refused

POOLS = {POOL: mock(routing={"policy": "least_loaded"})}
TAG = Grammar("tag", "{}")


def worker(name: str, *grammars: GrammarKind, **fields: Any) -> Candidate:
    return candidate(name, grammars=list(grammars), **fields)


async def placed(grammar: Grammar | None, *workers: Candidate, **sampling: Any) -> str:
    request = in_flight(job(sampling=Sampling(max_tokens=8, grammar=grammar, **sampling)))
    return placing([request], POOLS, {POOL: workers}).decide(request, Random(1), 0)["decode"].placement.worker


PREFILL = PoolId("prefill")
APART = POOLS | {PREFILL: mock(role="prefill")}


def one_of_two(name: str, pool: PoolId, role: Role, **changes: Any) -> Candidate:
    """SGLang's kind: it meets the other in a room, and as the one that decodes computes no prompt."""
    fields = {"pool": pool, "role": role, "block_bytes": 1, "computes": role == "prefill", "aside_most": 1} | changes
    return candidate(name, PlaceLimits(max_queued=4, remote_tokens=10**6), **fields)


async def stages(decodes: Candidate, *prefills: Candidate, **changes: Any) -> dict[str, str]:
    sampling = Sampling(max_tokens=8, **changes.pop("sampling", {}))
    request = in_flight(job(sampling=sampling, **changes), prefill=PREFILL)
    decisions = placing([request], APART, {POOL: [decodes], PREFILL: prefills}).decide(request, Random(1), 0)
    return {kind: decision.placement.worker for kind, decision in decisions.items()}


async def test_who_computes_no_prompts_gets_none_however_short_it_is() -> None:
    """A worker gets neither an answer that goes on, nor one that gives way, if it computes no prompts."""
    decodes = one_of_two("d", POOL, "decode")
    prefills = [one_of_two("in sequence", PREFILL, "prefill"), one_of_two("p", PREFILL, "prefill", meets_at="h:1")]
    for how in ({}, {"begun": [PartialOutput([3], 1)]}, {"aside": True}):
        assert await stages(decodes, *prefills, **how) == {"prefill": "p", "decode": "d"}
    with pytest.raises(NoWorker, match="serves this model"):
        await stages(decodes, prefills[0])
    with pytest.raises(RequestError, match="logprobs of a prompt"):
        await stages(decodes, *prefills, sampling={"prompt_logprobs": 1})
    assert await stages(one_of_two("d", POOL, "decode", computes=True), *prefills) == {"decode": "d"}


async def test_seeds_go_where_they_are_honoured_or_nowhere() -> None:
    """A request without temperature has nothing to draw, and any worker may have it."""
    free, busy = worker("free", seeds=False), worker("seeded", requests=3)
    assert await placed(None, free, busy, seed=7) == "seeded"
    for settings in ({"seed": 7, "temperature": 0.0}, {}):
        assert await placed(None, free, busy, **settings) == "free"
    with refused("seed", "sample differently"):
        await placed(None, free, seed=7)


async def test_a_worker_that_knows_the_kind_gets_it_however_busy_the_others() -> None:
    """One of an older version would answer as if nothing had been asked."""
    busy = worker("new", "json", "tag", requests=3)
    for _ in range(20):
        assert await placed(TAG, worker("old"), busy, worker("half", "json")) == "new"
    assert await placed(None, worker("old"), busy) == "old"


async def test_without_such_a_worker_it_waits_for_an_upgrade_or_is_refused() -> None:
    """An upgrade brings workers that know grammars; one that knows some, but not this kind, never will."""
    with pytest.raises(NoWorker, match="holds answers to a format"):
        await placed(TAG, worker("old"))
    with pytest.raises(RequestError, match="'tag'"):
        await placed(TAG, worker("old"), worker("half", "json"))
    with pytest.raises(NoWorker):
        await placed(TAG, worker("half", "json"), worker("new", "tag", draining=True))
    with pytest.raises(NoWorker, match="serves this model"):
        await placed(TAG)


def test_a_lease_of_a_version_before_names_no_grammars_and_can_do_the_rest() -> None:
    worker_fields, *others = msgspec.msgpack.decode(encode(worker("w", "json").lease))
    before = worker_fields.index("w") + Worker.__struct_fields__.index("grammars")
    old = decode_lease(msgspec.msgpack.encode([worker_fields[:before], *others])).worker
    assert (old.grammars, old.seeds, old.computes) == ([], True, True)
