"""The contract of painters, over the mock and over diffusers with tiny pipelines of random weights."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import pytest
from PIL import Image

from app.engines.base import MediaInput
from app.errors import EngineFailed, RequestError
from app.ids import RunId, WorkerId
from app.messages.job import Painting
from app.messages.media import Media
from app.painters.base import Painted, Painter, PaintRequest, PaintStep
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.runner.probed_work import ProbedWork
from tests.stack import wait_until
from workers.engine.probe import Probe

KINDS = ["mock", "sd"]
SLOW = ["sd3", "flux", "sglang-sd", "sglang-flux"]
VIDEO = Painting("a cat", 32, 32, 3, 1, format="mp4", frames=9, fps=8)


def pool(kind: str, folder: Path, **rules: Any) -> Pool:
    fields: dict[str, Any] = {"model": kind, "engine": "mock", "task": "image", "max_running": 4}
    args: dict[str, Any] = {"step_ms": 5.0}
    if kind != "mock":
        from tests.pipelines import make

        engine, _, pipeline = kind.rpartition("-")
        fields |= {"engine": engine or "diffusers", "path": make(pipeline, folder / pipeline)}
        args = {"backend": "diffusers"} if engine else {"threads": 1}
    return Pool.model_validate(fields | {"args": args, "painting": {"size": "64x64"} | rules})


@asynccontextmanager
async def started(kind: str, folder: Path, **rules: Any) -> AsyncIterator[Painter]:
    engine: Any = create_engine(pool(kind, folder, **rules))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipelines")


def painting(seed: int = 1, steps: int = 4, prompt: str = "a cat", **more: Any) -> Painting:
    return Painting(**{"prompt": prompt, "width": 48, "height": 32, "steps": steps, "seed": seed} | more)


async def made(painter: Painter, wanted: Painting, name: str = "a") -> list[PaintStep | Painted]:
    async with aclosing(painter.paint(PaintRequest(RunId(f"{name}.0"), wanted))) as steps:
        return [one async for one in steps]


async def file(painter: Painter, wanted: Painting, name: str = "a") -> bytes:
    last = (await made(painter, wanted, name))[-1]
    assert isinstance(last, Painted)
    return last.file


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # SGLang's
@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.media) for kind in SLOW)])
async def test_a_painter_keeps_its_contract(kind: str, folder: Path) -> None:
    """One test for each pipeline: loading one takes seconds."""
    sglang = kind.startswith("sglang")
    async with started(kind, folder) as painter:
        await steps_and_previews_come_before_the_file(painter, previews=not sglang)
        await a_request_gives_the_same_bytes_also_beside_others(painter)
        await a_closed_request_ends_within_a_step(painter, untold=20 if sglang else 0)
        await a_probe_is_one_step_of_which_no_metric_tells(painter, pool(kind, folder))
        if sglang:
            await edits_are_refused_by_name(painter)
        else:
            await an_edit_begins_from_its_picture(painter)
            await a_masked_edit_is_another_one(painter)
        if kind in ("sd", "sd3", "flux"):
            await only_what_the_mask_shows_is_edited(painter)
            with pytest.raises(RequestError, match="image"):
                await edited(painter, painting(strength=0.5), flat(0), flat(255))
        if kind.endswith("flux"):
            with pytest.raises(RequestError, match="negative_prompt"):
                await made(painter, painting(negative="a dog"))
        else:
            assert await file(painter, painting(negative="a dog")) != await file(painter, painting())
    with pytest.raises(EngineFailed):
        await made(painter, painting())


async def steps_and_previews_come_before_the_file(painter: Painter, *, previews: bool) -> None:
    before = painter.stats().paint_steps
    *steps, last = await made(painter, painting(previews=1))
    assert [(s.step, s.of) for s in steps if isinstance(s, PaintStep)] == [(n, 4) for n in range(1, 5)]
    preview_files = [s.preview for s in steps if isinstance(s, PaintStep)]
    assert [bool(file) for file in preview_files] == [False, previews, False, False]
    assert isinstance(last, Painted)
    for one in (last.file, *filter(None, preview_files)):
        picture = Image.open(io.BytesIO(one))
        assert (picture.size, picture.format, picture.mode) == ((48, 32), "PNG", "RGB")
    assert painter.stats().paint_steps == before + 4
    assert Image.open(io.BytesIO(await file(painter, painting(format="webp", quality=80)))).format == "WEBP"


async def a_request_gives_the_same_bytes_also_beside_others(painter: Painter) -> None:
    requests = [painting(seed, prompt=prompt) for seed, prompt in ((1, "a cat"), (2, "a cat"), (1, "two small dogs"))]
    requests.append(painting(1, steps=5))
    alone = [await file(painter, one) for one in requests]
    assert len(set(alone)) == 4
    beside = await asyncio.gather(*(file(painter, one, str(i)) for i, one in enumerate(requests)))
    assert beside == alone


async def a_probe_is_one_step_of_which_no_metric_tells(painter: Painter, of: Pool) -> None:
    before, probe_work = painter.stats(), ProbedWork()
    worker: Any = SimpleNamespace(
        engine=painter, painter=painter, worker=WorkerId("w"), gates=[None], probed=probe_work
    )
    await Probe(worker, of)()
    # Its thread looks for the next one a moment later.
    await asyncio.to_thread(wait_until, lambda: not painter.stats().running, "the painter is idle")
    after = painter.stats()
    assert (after.waiting, after.paint_steps) == (0, before.paint_steps + 1)
    assert probe_work.without(after).paint_steps == before.paint_steps


async def an_edit_begins_from_its_picture(painter: Painter) -> None:
    files = [await edited(painter, painting(strength=0.5), flat(colour)) for colour in (0, 255, 0)]
    assert files[0] == files[2] != files[1]


async def a_masked_edit_is_another_one(painter: Painter) -> None:
    whole, again = await edited(painter, painting(strength=0.5), flat(90)), painting(strength=0.5, masked=True)
    masked_files = [await edited(painter, again, flat(90), mask=LEFT_HALF) for _ in range(2)]
    assert masked_files[0] == masked_files[1] != whole


async def only_what_the_mask_shows_is_edited(painter: Painter) -> None:
    file = await edited(painter, painting(strength=1.0, masked=True), flat(90), mask=LEFT_HALF)
    image = Image.open(io.BytesIO(file))
    left_colours, right_colours = image.crop((0, 0, 24, 32)).getcolors(768), image.crop((24, 0, 48, 32)).getcolors(768)
    assert right_colours == [(24 * 32, (90, 90, 90))] != left_colours


async def edits_are_refused_by_name(painter: Painter) -> None:
    for mask, name in ((None, "image"), (LEFT_HALF, "mask")):
        with pytest.raises(RequestError, match=name):
            await edited(painter, painting(strength=0.5), flat(0), mask=mask)


def flat(colour: int) -> MediaInput:
    return MediaInput(Media("image", str(colour), (20, 30)), bytes([colour]) * 1800)


LEFT_HALF = MediaInput(Media("image", "left", (20, 30)), (bytes([255]) * 45 + bytes(45)) * 20)


async def edited(painter: Painter, wanted: Painting, *sources: MediaInput, mask: MediaInput | None = None) -> bytes:
    async with aclosing(painter.paint(PaintRequest(RunId("c.0"), wanted, 0, sources, mask))) as steps:
        (file,) = [one.file async for one in steps if isinstance(one, Painted)]
    return file


async def a_closed_request_ends_within_a_step(painter: Painter, *, untold: int) -> None:
    """Asserts that a closed request ends within a step, and that the next one begins.

    `untold`: steps of another process that may be over, and are not counted yet.
    """
    async with aclosing(painter.paint(PaintRequest(RunId("b.0"), painting(steps=900)))) as steps:
        async for one in steps:
            if isinstance(one, PaintStep) and one.step == 3:
                break
    steps_before = painter.stats().paint_steps
    await file(painter, painting(steps=2))
    assert painter.stats().paint_steps <= steps_before + 1 + 2 + untold


@pytest.mark.media
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # SGLang's
@pytest.mark.parametrize("kind", ["wan", "sglang-wan"])
async def test_a_video_has_its_frames_and_is_the_same_again(kind: str, folder: Path) -> None:
    async with started(kind, folder, videos=True) as painter:
        first, second = await file(painter, VIDEO), await file(painter, VIDEO)
        assert first == second
        path = folder / "video.mp4"
        path.write_bytes(first)
        with av.open(str(path)) as video:
            frame_sizes = [frame.to_image().size for frame in video.decode(video=0)]
            assert (frame_sizes, video.streams.video[0].average_rate) == ([(32, 32)] * 9, 8)
        with pytest.raises(RequestError, match="videos"):
            await made(painter, painting())
