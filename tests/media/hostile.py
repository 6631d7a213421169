"""Runs a hostile case, and says what it got through."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_network
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from app.errors import RequestError
from app.media.limits import MediaLimits
from app.media.loader import MediaLoader
from app.media.source import MediaSource
from app.settings import Settings
from tests.media.hostile_cases import NAMES, PIXELS, SIZE, Case
from tests.media.hostile_server import OUTER, HostileServer, Names
from tests.media.samples import picture

PARAM = "messages.0.content.1"
_HANGS_S = 60.0  # far above all bounds


class Guards:
    """Loaders with different limits, in front of one hostile server."""

    def __init__(self, server: HostileServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        hosts = {"*", *(f"{name}:{port}" for name in NAMES for port in (server.port, server.silent_port))}
        usual = msgspec.structs.replace(
            MediaLimits.of(Settings()),
            hosts=frozenset(hosts), networks=(ip_network(f"{OUTER}/32"),), size=SIZE, pixels=PIXELS, fetch_s=60.0,
            connect_s=30.0,
        )  # fmt: skip
        self.limits = {
            "usual": usual,
            "listed": msgspec.structs.replace(usual, hosts=frozenset({"elsewhere.test"})),
            "any port": msgspec.structs.replace(usual, hosts=frozenset({"media.test:1"})),
            "short": msgspec.structs.replace(usual, fetch_s=1.0, connect_s=0.5),
            "files": msgspec.structs.replace(usual, folder=folder),
            "long": msgspec.structs.replace(usual, size=2**26, decode_s=1),
            "large": msgspec.structs.replace(usual, pixels=2**28, decode_bytes=2**28),
        }
        self._loaders: dict[str, MediaLoader] = {}

    def loader(self, limits: str = "usual", names: Names | None = None) -> MediaLoader:
        """A loader with its own names if some are given; else one that is kept."""
        resolve = (names or Names(NAMES)).resolve
        if names is not None or limits not in self._loaders:
            new_loader = MediaLoader(self.limits[limits], resolve=resolve, tls=self.server.trusting)
            if names is not None:
                return new_loader
            self._loaders[limits] = new_loader
        return self._loaders[limits]

    async def let_through(self, case: Case) -> str | None:
        """None if it is refused as it should be, with nothing reached; else what happened."""
        route = "/" + case.name.replace(": ", "-").replace(" ", "-")
        url: str | None = case.url
        if case.serve is not None:
            self.server.routes[route if not case.url else "/" + case.url.rpartition("/")[2]] = case.serve
            url = case.url or f"https://media.test:{{port}}{route}"
        if url is not None and case.data is None:
            url = url.replace("{port}", str(self.server.port)).replace("{silent}", str(self.server.silent_port))
            url = url.replace("{folder}", str(self.folder))
        data = case.data() if callable(case.data) else case.data
        source = MediaSource(case.kind, PARAM, url=None if data is not None else url, data=data)
        connections_before = self.server.inner_reached
        fresh = case.url.startswith("https://rebind")
        loader = self.loader(case.limits, Names(NAMES) if fresh else None)
        try:
            async with asyncio.timeout(_HANGS_S):
                load = loader.load_video if case.kind == "video" else loader.load_picture
                await load(source)
        except RequestError as exc:
            if case.reason not in exc.message or exc.param != PARAM or PARAM not in exc.message:
                return f"refused for another reason: {exc.message} ({exc.param})"
            if any(part in exc.message for part in (OUTER, "127.0.0.2", "169.254", str(self.folder))):
                return f"the refusal tells internals: {exc.message}"
        except Exception as exc:  # noqa: BLE001 (what isn't a RequestError is a server error)
            return f"failed: {exc!r}"
        else:
            return "it was taken"
        finally:
            if fresh:
                await loader.close()
        return None if self.server.inner_reached == connections_before else "a private address was reached"

    async def close(self) -> None:
        for loader in self._loaders.values():
            await loader.close()


@asynccontextmanager
async def guards() -> AsyncIterator[Guards]:
    """The guards, with their server."""
    with _folders() as (folder, certificates), HostileServer(certificates).running() as server:
        all_guards = Guards(server, folder)
        try:
            yield all_guards
        finally:
            await all_guards.close()


@contextmanager
def _folders() -> Iterator[tuple[Path, Path]]:
    """One with files that may be read and traps, and one for certificates."""
    with TemporaryDirectory() as name:
        whole = Path(name).resolve()
        folder, more, certificates = whole / "media", whole / "media-more", whole / "certificates"
        for one in (folder, more, certificates):
            one.mkdir()
        for secret in (whole, more):
            (secret / "secret.png").write_bytes(picture())
        (folder / "good.png").write_bytes(picture())
        (folder / "large.png").write_bytes(picture() + bytes(SIZE))
        (folder / "link.png").symlink_to(whole / "secret.png")
        (folder / "linked").symlink_to(whole)
        (folder / "zero").symlink_to("/dev/zero")
        (folder / "circle").symlink_to(folder / "circle")
        os.mkfifo(folder / "pipe")
        yield folder, certificates
