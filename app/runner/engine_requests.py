"""Makes the engine's requests for a job, with the job's media from Redis."""

import sys
from collections.abc import Callable
from itertools import islice

from msgspec.structs import replace
from redis.asyncio import Redis

from app.bounded.turns import CLIENT, Turns
from app.engines.base import EmbeddingShape, EncodeRequest, EngineInfo, GenerateRequest, MediaInput
from app.errors import RequestError
from app.grammars.checker import GrammarChecker
from app.ids import WorkerId
from app.keys import Keys
from app.messages.events import GRAMMAR
from app.messages.handoff import Handoff
from app.messages.job import ASIDE_PRIORITY, Grammar, Job
from app.messages.kinds import TierUse
from app.messages.lease import Speeds
from app.messages.media import MediaKind
from app.painters.base import PaintRequest
from app.routing.tier_cost import worthwhile
from app.runner.media import fetch_media
from app.runner.pictures import WorkerPictures

_READ_AT_ONCE = 8  # jobs' media; each takes a connection to Redis, of which the lease needs one, too
_TRIES = 20  # requests, of which one loads from tiers that have been slower than computing


class EngineRequests:
    def __init__(
        self,
        worker: WorkerId,
        keys: Keys,
        redis: Redis,
        pictures: WorkerPictures,
        info: EngineInfo,
        speeds: Callable[[], Speeds],
        compiler: GrammarChecker | None,
    ) -> None:
        """`info`: the engine's. `speeds`: of computing, and of loading from tiers. `compiler`: tries grammars."""
        self._compiler = compiler
        self._info, self._speeds, self._asked = info, speeds, 0
        self._worker, self._keys, self._redis, self._pictures = worker, keys, redis, pictures
        self._turns = Turns(_READ_AT_ONCE, most_waiting=sys.maxsize)  # of clients, to read their jobs' media
        self._takes: set[MediaKind] = {*info.media, *(sign.kind for sign in info.signs)}
        self._embeddings: EmbeddingShape | None = info.embeddings  # as the engine takes encoded pictures

    async def generation(self, job: Job, handoff: Handoff | None, weights: str) -> GenerateRequest:
        """`weights`: the version that the engine has.

        Raises: MediaLost, RequestError for media that the engine doesn't take, or a grammar of which it would die;
        Saturated and NoProcess for a grammar.
        """
        return await self._request(job, handoff, weights, computes=handoff is None)

    async def _request(self, job: Job, handoff: Handoff | None, weights: str, *, computes: bool) -> GenerateRequest:
        """`computes`: the engine computes the prompt; else it gets the prompt's KV."""
        sampling = job.sampling
        if sampling.content is not None:  # `StopFinder` looks for the stop strings
            sampling = replace(sampling, stop=())
        CLIENT.set(job.turn)
        if sampling.grammar is not None and self._compiler is not None:
            sampling = replace(sampling, grammar=await self._tried(sampling.grammar, self._compiler))
        media = await self.media(job)
        if media and self._embeddings is not None and computes:
            media = await self._pictures.attach(job, media, self._embeddings, weights)
        return GenerateRequest(
            job.run,
            job.prompt,
            sampling=sampling,
            priority=_priority(job),
            rank=self._rank(job),
            cache_salt=job.cache_salt,
            handoff=handoff,
            begun=job.begun,
            session=job.session,
            adapter=job.adapter,
            media=media,
            tiers=self._tiers(),
            trace_headers=job.trace_headers,
            written=job.written,
        )

    async def prefill(self, job: Job, handoff: Handoff | None, weights: str) -> GenerateRequest:
        """A prompt for another worker, which goes before whole requests: it takes a seat for its last step only.

        Raises: as `generation`.
        """
        request = await self._request(job, handoff, weights, computes=True)
        return replace(request, priority=request.priority - 2 * ASIDE_PRIORITY) if self._info.peers else request

    def _tiers(self) -> TierUse:
        if not self._info.tier_block_bytes:
            return "all"
        self._asked += 1
        if not self._asked % _TRIES:  # else a tier would never be measured again
            return "all"
        return worthwhile(self._speeds(), self._info.block_size, self._info.tier_block_bytes)

    async def _tried(self, grammar: Grammar, compiler: GrammarChecker) -> Grammar:
        """The grammar for the engine. Raises: RequestError, Saturated, NoProcess."""
        verdict = await compiler.verdict(grammar)
        if verdict.reason:
            raise RequestError(f"The grammar of this request is refused: {verdict.reason}.", param=GRAMMAR)
        return verdict.instead or grammar

    def encoding(self, job: Job) -> EncodeRequest:
        """The request for a job with inputs."""
        assert job.inputs is not None
        rest = iter(job.prompt)
        inputs = [list(islice(rest, length)) for length in job.inputs.lengths]
        return EncodeRequest(
            job.run,
            inputs,
            job.inputs.task,
            dimensions=job.inputs.dimensions,
            priority=_priority(job),
            rank=self._rank(job),
            trace_headers=job.trace_headers,
        )

    async def painting(self, job: Job) -> PaintRequest:
        """The request for a job that paints. Raises: MediaLost, RequestError for an engine that edits no pictures."""
        assert job.painting is not None
        media = await self.media(job)
        mask = media.pop() if job.painting.masked else None
        return PaintRequest(job.run, job.painting, _priority(job), tuple(media), mask)

    async def media(self, job: Job) -> list[MediaInput]:
        """The job's media; clients take turns.

        Raises: MediaLost, RequestError for media that the engine doesn't take.
        """
        if not job.media:
            return []
        await self._turns.take(job.turn)
        try:
            return await fetch_media(self._redis, self._keys, job, self._takes)
        finally:
            self._turns.end()

    def _rank(self, job: Job) -> int:
        return job.stage_of(self._worker).rank


def _priority(job: Job) -> int:
    """The job's priority on the engine: clients' priorities, with one between each two of them."""
    return 2 * (job.priority + ASIDE_PRIORITY if job.aside else job.priority) + job.behind
