"""A worker's pictures that are encoded apart: for other workers, and by them. On the engine's loop."""

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from app.engines.base import Embedding, EmbeddingShape, MediaInput, PictureEncoder, PictureRequest
from app.errors import EngineDead, HandoffFailed, SettingsError, StoreDown, XylemError
from app.ids import RunId, WorkerId
from app.keys import Keys
from app.messages.handoff import EmbeddingHandle, decode_embedding
from app.messages.job import Job
from app.messages.media import Media
from app.messages.wire import encode
from app.runner.embedding_memory import EmbeddingMemory
from app.store import Command, Wire
from app.telemetry import logger

log = logger(__name__)

INDEX_TTL_S = 600  # of an entry; the worker writes it anew when it is asked for the picture again


class WorkerPictures:
    def __init__(self, wire: Wire, keys: Keys, worker: WorkerId, model: str, size: int) -> None:
        """`model`: as its pools file names it. `size`: bytes of encoded pictures that are kept, or fetched at once."""
        self._wire, self._keys, self._worker, self._model = wire, keys, worker, model
        self._memory = EmbeddingMemory(worker, size)
        self._making: dict[str, asyncio.Task[EmbeddingHandle]] = {}
        self.encoded = self.found = 0  # for others: by the engine, and without it
        self.fetched = self.lost = self.missing = 0  # from others; not, although one had it; and since nobody had it

    async def start(self) -> None:
        """Starts the memory of a worker that encodes for others, or takes what they encode.

        Raises: SettingsError without NIXL.
        """
        await self._memory.start()

    async def encode(self, engine: PictureEncoder, job: Job, inputs: Sequence[MediaInput], weights: str) -> int:
        """Encodes pictures of a job, and tells where they are. Returns tokens of those that the engine encoded.

        One that can't be encoded is left to the worker that answers. Raises: EngineDead.
        """
        tokens = 0
        outcomes = await asyncio.gather(
            *(self._one(engine, job, one, weights) for one in inputs), return_exceptions=True
        )
        commands: list[Command] = []
        for one, outcome in zip(inputs, outcomes, strict=True):
            if isinstance(outcome, EngineDead) or (
                isinstance(outcome, BaseException) and not isinstance(outcome, XylemError)
            ):
                raise outcome
            if isinstance(outcome, XylemError):
                log.warning("picture_not_encoded", run=job.run, **job.names, error=outcome.message)
                continue
            handle, new = outcome
            tokens += one.media.length if new else 0
            key = self._keys.embedding(self._model, one.media.sha256)
            commands.append(("SET", key, encode(handle), "EX", INDEX_TTL_S))
        try:
            if commands:
                await self._wire.execute(commands)
        except StoreDown as exc:  # the next worker finds none
            log.warning("pictures_not_told", run=job.run, **job.names, error=exc.message)
        return tokens

    async def attach(self, job: Job, media: list[MediaInput], shape: EmbeddingShape, weights: str) -> list[MediaInput]:
        """The same, with what others have encoded. Each is checked: an engine may die of a wrong one."""
        pictures = [one for one in media if one.media.kind == "image"]
        names = list({one.media.sha256: None for one in pictures})
        if not names:
            return media
        try:
            raws = await self._wire.execute([("GET", self._keys.embedding(self._model, name)) for name in names])
        except StoreDown:
            raws = [None] * len(names)
        firsts = {one.media.sha256: one.media for one in reversed(pictures)}
        embeddings = await asyncio.gather(
            *(self._fetch(job, firsts[name], raw, shape, weights) for name, raw in zip(names, raws, strict=True))
        )
        by_name = dict(zip(names, embeddings, strict=True))
        return [replace(one, embedding=by_name.get(one.media.sha256)) for one in media]

    async def close(self) -> None:
        await self._memory.close()

    async def _one(
        self, engine: PictureEncoder, job: Job, media_input: MediaInput, weights: str
    ) -> tuple[EmbeddingHandle, bool]:
        """The picture's handle, and whether the engine encoded it for this job. Raises: XylemError."""
        name = media_input.media.sha256
        handle = self._memory.find(name)
        if handle is not None and handle.weights == weights:
            self.found += 1
            return handle, False
        making, new = self._making.get(name), False
        if making is None:  # a task of its own: another job may wait for it when this one is cancelled
            new, making = True, asyncio.create_task(self._make(engine, job, media_input, weights))
            self._making[name] = making
            making.add_done_callback(lambda _: self._making.pop(name, None))
        else:
            self.found += 1
        return await asyncio.shield(making), new

    async def _make(self, engine: PictureEncoder, job: Job, media_input: MediaInput, weights: str) -> EmbeddingHandle:
        media = media_input.media
        placeholders = job.prompt[media.offset : media.offset + media.length]
        run = RunId(f"{job.run}-{media.sha256[:16]}")
        embedding = await engine.encode_picture(PictureRequest(run, media_input, placeholders, job.trace_headers))
        self.encoded += 1
        entry = await self._memory.keep(media.sha256, embedding, weights)
        if entry.forgotten:
            keys = [self._keys.embedding(self._model, name) for name in entry.forgotten]
            try:
                await self._wire.execute([("UNLINK", key) for key in keys])
            except StoreDown as exc:  # who fetches one of them finds another picture, and encodes it
                log.warning("pictures_not_forgotten", error=exc.message)
        return entry.handle

    async def _fetch(
        self, job: Job, media: Media, raw: bytes | None, shape: EmbeddingShape, weights: str
    ) -> Embedding | None:
        """None if it is not there, or not as it should be: the engine encodes the picture then."""
        if raw is None:
            self.missing += 1
            return None
        try:
            handle = decode_embedding(raw)
            _check(handle, job, media, shape, weights)
            embedding = await self._memory.fetch(handle)
        except (msgspec.DecodeError, HandoffFailed, SettingsError) as exc:
            self.lost += 1
            why = exc.message if isinstance(exc, XylemError) else str(exc)
            log.warning("encoded_picture_not_fetched", run=job.run, **job.names, reason=why)
            return None
        self.fetched += 1
        return embedding


def _check(handle: EmbeddingHandle, job: Job, media: Media, shape: EmbeddingShape, weights: str) -> None:
    """Raises: HandoffFailed."""
    placeholders = job.prompt[media.offset : media.offset + media.length]
    rows = len(placeholders) if shape.token is None else placeholders.count(shape.token)
    for what, theirs, ours in (
        ("rows", handle.rows, rows),
        ("width", handle.width, shape.width),
        ("dtype", handle.dtype, shape.dtype),
        ("version of the weights", handle.weights, weights),
    ):
        if theirs != ours:
            raise HandoffFailed(f"{handle.worker} has encoded it with another {what}: {theirs!r}, here it is {ours!r}.")
