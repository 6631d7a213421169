"""Reads a request's pictures, videos and sounds from where they come, and makes samples of them."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from app.batch.file_store import FileStore
from app.batch.storage import Storage, in_thread
from app.dispatch.media.expansions import Expansions
from app.errors import FileGone, RequestError
from app.ids import FileId, KeyId
from app.media.loader import MediaLoader, all_of
from app.media.picture import Picture
from app.media.refused import Refused
from app.media.sound import Sound
from app.media.source import MediaSource, SourceKind
from app.media.video import Video, container_of
from app.messages.media import Frame, Media, MediaSign
from app.running.ending import side_by_side
from app.tenants.admission import admitted


class Asker(NamedTuple):
    """The client that asks, as far as media depend on it."""

    owner: KeyId | None = None  # of the API key, whose files may be named; None: no files may be
    known: Sequence[Media] = ()  # of all origins, when the request came: they are not fetched again


# file: a picture or a video, as its content says. embeds: in the request itself
OriginKind = Literal["image", "audio", "video", "file", "embeds"]


class Origin(NamedTuple):
    """The origin of a picture, a video or a sound: equal ones are the same. Without `url` and `file_id`: a form."""

    kind: OriginKind
    url: str | None = None  # https:, data: or file:
    file_id: str | None = None  # of the client's own files
    number: int = 0  # of a form's files, or of a video's frames, from 0


class Learned(Struct, frozen=True):
    """The tokens that stand for a medium in prompts, as the model's engines expand it."""

    sign: MediaSign
    # Token ids, by how many of its kind are before it, as far as it comes there; 0: wherever it is, unless `numbered`.
    tokens: Mapping[int, Sequence[int]]
    of: int = 1  # how many of its kind the prompt has; 1: however many, unless `counted`

    def at(self, number: int, of: int, param: str) -> Sequence[int]:
        """Raises: RequestError."""
        tokens = self.tokens.get(number if self.sign.numbered else 0)
        if tokens is None or (self.sign.counted and of != self.of):
            message = f"'{param}' can't be shortened before this model's pictures: it counts them."
            raise RequestError(message, param=param)
        return tokens


class SharedBytes(Struct, frozen=True, weakref=True):
    """Samples that all requests of this process have which show the same at the same time."""

    data: bytes


class Sample(Struct, frozen=True):
    media: Media  # not placed in a prompt yet
    data: bytes | None  # None: it is in Redis since the request came
    param: str = ""  # the name of the first part with it
    becomes: "Learned | None" = None  # None: the model's files say it
    shared: SharedBytes | None = None  # with the data, which are in memory once for as long as anybody refers to this


Samples = Mapping[Origin, Sample]
NO_SAMPLES: Samples = MappingProxyType({})


class MediaReader:
    def __init__(
        self,
        loader: MediaLoader,
        storage: Storage,
        most: int,
        files: FileStore | None = None,
        expansions: Expansions | None = None,
    ) -> None:
        """`storage`: of files. `most`: bytes of one of them. `files`, `expansions`: None: there is no Redis."""
        self._loader, self._storage, self._most = loader, storage, most
        self._files, self.expansions = files, expansions
        self._shared: WeakValueDictionary[str, SharedBytes] = WeakValueDictionary()  # by their hashes

    def with_redis(self, files: FileStore, expansions: Expansions) -> "MediaReader":
        return MediaReader(self._loader, self._storage, self._most, files, expansions)

    async def read(
        self, params: Mapping[Origin, str], asker: Asker, *, whole_videos: bool = False
    ) -> dict[Origin, Sample]:
        """`params`: the name of the first part with each origin. Side by side. `whole_videos`: not in their frames.

        Raises: RequestError about a part, RateLimited, BudgetUsed, Saturated, StorageDown, StoreDown.
        """
        if asker.known:
            return dict(_kept(params, asker.known))
        await admitted()
        self._loader.check_count([MediaSource(_kind(origin), param) for origin, param in params.items()])
        barrier = all_of(params)

        async def samples(origin: Origin, param: str) -> list[Sample]:
            one = await self._loader.load(await self._source(origin, param, asker), barrier)
            new_samples = [await _whole(one, param)] if whole_videos and isinstance(one, Video) else _samples(one)
            return [self._once(sample) for sample in new_samples]

        sample_lists = await side_by_side(samples(*entry) for entry in params.items())
        return {
            origin._replace(number=number): replace(sample, param=params[origin])
            for origin, of_one in zip(params, sample_lists, strict=True)
            for number, sample in enumerate(of_one)
        }

    async def uploaded(self, sources: Sequence[MediaSource]) -> list[Sample]:
        """Pictures and masks that are files of a form. Raises: RequestError about a field, RateLimited."""
        await admitted()
        return [self._once(_sample(picture)) for picture in await self._loader.load_pictures(sources)]

    async def recording(self, data: bytes, param: str, window_s: float) -> list[Sound]:
        """A recording in windows, as from `MediaLoader.load_recording`. Raises: RequestError, RateLimited."""
        await admitted()
        return await self._loader.load_recording(data, param, window_s)

    async def spoken(self, params: Mapping[Origin, str], window_s: float) -> list[list[Sound]]:
        """Sounds of a request in windows, as `MediaLoader.load_windows`. `params` as in `read`.

        Raises: RequestError about a part, Saturated.
        """
        await admitted()
        sources = [MediaSource("audio", param, url=origin.url) for origin, param in params.items()]
        self._loader.check_count(sources)
        barrier = all_of(sources)
        return await side_by_side(self._loader.load_windows(source, window_s, barrier) for source in sources)

    def _once(self, sample: Sample) -> Sample:
        """The same, with the bytes that another request in progress has of it, if there is one."""
        assert sample.data is not None
        only = self._shared.setdefault(sample.media.sha256, SharedBytes(sample.data))
        return replace(sample, data=only.data, shared=only)

    async def _source(self, origin: Origin, param: str, asker: Asker) -> MediaSource:
        if origin.file_id is None:
            return MediaSource(_kind(origin), param, url=origin.url)
        try:
            if asker.owner is None or self._files is None:
                raise FileGone
            file_record = await self._files.find(FileId(origin.file_id), asker.owner)
            data = await in_thread(_head, self._storage, file_record.path, self._most + 1)
        except FileGone as exc:
            raise RequestError(f"'{param}': you have no file of that id.", param=param) from exc
        return MediaSource(_kind(origin, data), param, data=data)

    async def close(self) -> None:
        await self._loader.close()


def _head(storage: Storage, path: str, size: int) -> bytes:
    with storage.read(path) as file:
        return file.read(size)


def samples_of(origin: Origin, samples: Samples) -> list[Sample]:
    """The samples of an origin: a video's frames, else one."""
    first = samples[origin]
    frame = first.media.frame
    return [first] if frame is None else [samples[origin._replace(number=number)] for number in range(frame.of)]


def _kept(params: Mapping[Origin, str], stored_media: Sequence[Media]) -> Iterator[tuple[Origin, Sample]]:
    """Yields the samples as they were when the request came."""
    media = iter(stored_media)
    for origin, param in params.items():
        first = next(media)
        yield origin, Sample(first, None, param)
        for number in range(1, first.frame.of if first.frame is not None else 1):
            yield origin._replace(number=number), Sample(next(media), None, param)


def _kind(origin: Origin, data: bytes = b"") -> SourceKind:
    if origin.kind == "file":
        return "image" if container_of(data) is None else "video"
    assert origin.kind != "embeds"
    return origin.kind


def _samples(one: Picture | Video | Sound) -> list[Sample]:
    if isinstance(one, Picture):
        return [_sample(one)]
    if isinstance(one, Sound):
        return [Sample(Media("audio", one.sha256, (one.length,)), one.data)]
    of = len(one.frames)
    return [
        _sample(frame.picture, Frame(number, of, frame.at_s, one.long_s)) for number, frame in enumerate(one.frames)
    ]


async def _whole(video: Video, param: str) -> Sample:
    """Raises: RequestError about the part."""
    try:
        shape = video.shape
    except Refused as exc:
        raise RequestError(f"'{param}': {exc}.", param=param) from exc
    return Sample(Media("video", video.sha256, shape), await asyncio.to_thread(lambda: video.rgb))


def _sample(picture: Picture, frame: Frame | None = None) -> Sample:
    return Sample(Media("image", picture.sha256, (picture.height, picture.width), frame=frame), picture.rgb)
