"""From where a request's pictures come, to their pixels."""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from app.batch.file_store import FileStore
from app.batch.storage import Storage
from app.errors import FileGone, RequestError
from app.ids import FileId, KeyId
from app.media.loader import MediaLoader
from app.media.picture import Picture
from app.media.sound import Sound
from app.media.source import MediaSource
from app.messages import Media, MediaKind


class Asker(NamedTuple):
    """Who asks, as far as media depend on it."""

    owner: KeyId | None = None  # of the API key, whose files may be named; None: no files may be
    known: Sequence[Media] = ()  # of all origins, when the request came: they are not fetched again


class Origin(NamedTuple):
    """Where a picture or a sound comes from: equal ones are the same. Without `url` and `file_id`: a form."""

    kind: MediaKind
    url: str | None = None  # https:, data: or file:
    file_id: str | None = None  # of the client's own files
    number: int = 0  # of a form's files, from 0


class Sample(Struct, frozen=True):
    media: Media  # not placed in a prompt yet
    data: bytes | None  # None: it is in Redis since the request came


Samples = Mapping[Origin, Sample]
NO_SAMPLES: Samples = MappingProxyType({})


class MediaReader:
    def __init__(self, loader: MediaLoader, storage: Storage, most: int) -> None:
        """`storage`: of files. `most`: bytes of one of them."""
        self._loader, self._storage, self._most = loader, storage, most
        self.files: FileStore | None = None  # None: there is no Redis

    async def read(self, params: Mapping[Origin, str], asker: Asker) -> dict[Origin, Sample]:
        """`params`: the name of the first part with each origin. Side by side.

        Raises: RequestError about a part, Saturated, StorageDown, StoreDown.
        """
        if len(asker.known) == len(params):
            return {origin: Sample(media, None) for origin, media in zip(params, asker.known, strict=True)}
        sources = await asyncio.gather(*(self._source(origin, param, asker) for origin, param in params.items()))
        pictures = await self._loader.load_pictures(sources)
        return {origin: _sample(picture) for origin, picture in zip(params, pictures, strict=True)}

    async def uploaded(self, sources: Sequence[MediaSource]) -> list[Sample]:
        """Pictures and masks that are files of a form. Raises: RequestError about a field."""
        return [_sample(picture) for picture in await self._loader.load_pictures(sources)]

    async def recording(self, data: bytes, param: str, window_s: float) -> list[Sound]:
        """As `MediaLoader.load_recording`. Raises: RequestError."""
        return await self._loader.load_recording(data, param, window_s)

    async def _source(self, origin: Origin, param: str, asker: Asker) -> MediaSource:
        if origin.file_id is None:
            return MediaSource("image", param, url=origin.url)
        try:
            if asker.owner is None or self.files is None:
                raise FileGone
            stored = await self.files.find(FileId(origin.file_id), asker.owner)
            data = await asyncio.to_thread(_head, self._storage, stored.path, self._most + 1)
        except FileGone as exc:
            raise RequestError(f"'{param}': you have no file of that id.", param=param) from exc
        return MediaSource("image", param, data=data)

    async def close(self) -> None:
        await self._loader.close()


def _head(storage: Storage, path: str, size: int) -> bytes:
    with storage.read(path) as file:
        return file.read(size)


def _sample(picture: Picture) -> Sample:
    return Sample(Media("image", picture.sha256, (picture.height, picture.width)), picture.rgb)
