"""TensorRT-LLM's VisualGen as a painter, on a double made from its contract: it runs on NVIDIA's GPUs only."""

import asyncio
import gc
import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from app.engines.base import MediaInput
from app.errors import EngineFailed, RequestError, SettingsError
from app.ids import RunId
from app.messages.job import Painting
from app.messages.media import Media
from app.painters.base import Painted, PaintRequest, PaintStep
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from tests.trtllm.contract import Use, contract
from tests.trtllm.double import installed
from tests.trtllm.generated import Package

PICTURE, VIDEO = "FluxPipeline", "WanPipeline"
ARGS: dict[str, Any] = {
    "parallel_config": {"cfg_size": 2, "ulysses_size": 2, "ring_size": 2},
    "cache_config": {"cache_backend": "teacache", "teacache_thresh": 0.3, "use_ret_steps": True},
    "cpu_offload_config": {"enable": True, "stages": ["text_encoder", "transformer"]},
    "compilation_config": {"skip_warmup": True},
    "torch_compile_config": {"enable": False},
    "cuda_graph_config": {"enable": False},
    "attention_config": {"backend": "TRTLLM"},
    "quant_config": {"quant_algo": "FP8", "dynamic": True},
}


@pytest.fixture
def package() -> Iterator[Package]:
    with installed() as installation:
        yield installation


def pool(folder: Path, pipeline: str = PICTURE, args: dict[str, Any] | None = None, **rules: Any) -> Pool:
    folder.mkdir(exist_ok=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
    fields = {"model": "p", "engine": "trtllm", "task": "image", "path": folder, "args": args or {}}
    return Pool.model_validate(fields | {"painting": {"videos": pipeline == VIDEO} | rules})


@asynccontextmanager
async def started(folder: Path, pipeline: str = PICTURE, **args: Any) -> AsyncIterator[Any]:
    painter: Any = create_engine(pool(folder, pipeline, args))
    await painter.start()
    try:
        yield painter
    finally:
        await painter.close()


def painting(**more: Any) -> Painting:
    return Painting(**{"prompt": "a cat", "width": 48, "height": 32, "steps": 4, "seed": 1} | more)


async def made(painter: Any, wanted: Painting, *sources: MediaInput) -> list[PaintStep | Painted]:
    async with aclosing(painter.paint(PaintRequest(RunId("a.0"), wanted, 0, sources))) as steps:
        return [one async for one in steps]


async def file(painter: Any, wanted: Painting) -> bytes:
    last = (await made(painter, wanted))[-1]
    assert isinstance(last, Painted)
    return last.file


@pytest.mark.usefixtures("package")
async def test_the_same_request_gives_the_same_bytes_and_another_one_others(tmp_path: Path) -> None:
    async with started(tmp_path) as painter:
        requests = [painting(), painting(seed=2), painting(negative="a dog"), painting(guidance=3.0), painting(steps=5)]
        files = [await file(painter, one) for one in requests]
        assert len(set(files)) == len(requests)
        assert await asyncio.gather(*(file(painter, one) for one in requests)) == files
        image = Image.open(io.BytesIO(files[0]))
        assert (image.size, image.format) == ((48, 32), "PNG")
        assert painter.stats().paint_steps == 2 * (4 * 4 + 5)
        [step, _last] = await made(painter, painting())
        assert step == PaintStep(4, 4)  # it tells of no other
    with pytest.raises(EngineFailed):
        await made(painter, painting())


@pytest.mark.usefixtures("package")
async def test_one_that_waits_is_stopped_before_it_begins(tmp_path: Path) -> None:
    """The one that is being painted is painted to its end: VisualGen can't be told."""
    async with started(tmp_path) as painter:
        first = asyncio.create_task(file(painter, painting()))
        waiting = painter.paint(PaintRequest(RunId("b.0"), painting(steps=900)))
        next_step = asyncio.ensure_future(anext(waiting))
        next_step.cancel()
        await asyncio.gather(first, next_step, return_exceptions=True)
        await file(painter, painting())
        assert painter.stats().paint_steps <= 900 + 2 * 4
        assert first.result()


@pytest.mark.usefixtures("package")
async def test_a_video_has_its_frames(tmp_path: Path) -> None:
    request = painting(format="mp4", frames=9, fps=8)
    async with started(tmp_path, VIDEO) as painter:
        assert b"ftyp" in (await file(painter, request))[:16]


@pytest.mark.usefixtures("package")
async def test_what_it_cannot_paint_is_refused_or_fails_without_the_prompt(tmp_path: Path) -> None:
    picture = MediaInput(Media("image", "x", (2, 2)), bytes(12))
    async with started(tmp_path) as painter:
        with pytest.raises(RequestError, match="image"):
            await made(painter, painting(strength=0.5), picture)
        with pytest.raises(RequestError, match="height"):
            await made(painter, painting(height=40))
        with pytest.raises(EngineFailed) as failure:
            await made(painter, painting(prompt="fails"))
        assert "fails" not in failure.value.message
        assert await file(painter, painting())


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"parallel_config": {"cfg_size": 3}}, "args.parallel_config.cfg_size=3: must be 1 or 2"),
        ({"parallel_config": {"ulysses_size": 0}}, "args.parallel_config.ulysses_size=0"),
        ({"parallel_config": {"ring_size": 2, "attn2d_size": [2, 2]}}, "args.parallel_config.ring_size=2"),
        ({"parallel_config": {"attn2d_size": 4}}, "args.parallel_config.attn2d_size=4"),
        ({"parallel_config": 2}, "args.parallel_config=2"),
        ({"parallel_config": {"sizes": 2}}, "ParallelConfig has no sizes"),
        ({"cache_config": {"cache_backend": "tea"}}, "args.cache_config.cache_backend='tea'"),
        ({"cache_config": {"cache_backend": "teacache", "thresh": 0.1}}, "TeaCacheConfig has no thresh"),
        ({"cpu_offload_config": {"enable": True}, "cuda_graph_config": {"enable": True}}, "args.cpu_offload_config"),
        ({"model": "/elsewhere"}, "args.model"),
        ({"teacache": True}, "VisualGenArgs has no teacache"),
        ({"env": {"A": 1}}, "args.env"),
    ],
)
async def test_a_bad_argument_stops_it_at_its_start_by_name(args: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=said.replace("[", r"\[")):
        async with started(tmp_path, **args):
            pass


@pytest.mark.usefixtures("package")
async def test_the_pipeline_is_found_from_the_models_index(tmp_path: Path) -> None:
    assert (await _configured(tmp_path, VIDEO))["pipeline"] == VIDEO
    with pytest.raises(SettingsError, match=r"painting\.videos: WanPipeline says true"):
        create_engine(pool(tmp_path, VIDEO, videos=False))
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(SettingsError, match="model_index"):
        create_engine(pool(tmp_path / "empty").model_copy(update={"path": tmp_path}))
    (tmp_path / "model_index.json").unlink()
    with pytest.raises(SettingsError, match="no model_index"):
        create_engine(pool(tmp_path / "other").model_copy(update={"path": tmp_path}))


async def _configured(folder: Path, pipeline: str) -> Any:
    async with started(folder, pipeline, **ARGS) as painter:
        return painter.configuration()


async def use_everything(folder: Path) -> None:
    async with started(folder, VIDEO, **ARGS) as painter:
        await file(painter, painting(format="mp4", frames=9, fps=8, negative="a dog", guidance=2.0))
    cache = {"cache_config": {"cache_backend": "cache_dit", "max_warmup_steps": 2}}
    async with started(folder, PICTURE, **cache) as painter:
        await file(painter, painting())


@pytest.mark.filterwarnings("ignore")  # what broke in the middle leaves sockets
def test_a_name_that_changed_is_noticed(tmp_path: Path) -> None:
    """Each name that the painter passes or reads is renamed, and what worked before fails."""
    with installed() as package:
        asyncio.run(use_everything(tmp_path))
    uses = {use for use in package.uses if not use.name.startswith("__init__")}
    assert {use.owner for use in uses} >= {"VisualGen", "VisualGenArgs", "VisualGenParams", "VisualGenOutput"}
    assert len(uses) > 30
    unnoticed_uses = [use for use in sorted(uses) if not _noticed(use, tmp_path)]
    gc.collect()
    assert not unnoticed_uses


def _noticed(use: Use, folder: Path) -> bool:
    with installed(contract(without=use)):
        try:
            asyncio.run(use_everything(folder))
        except Exception:  # noqa: BLE001 (however it is noticed)
            return True
    return False
