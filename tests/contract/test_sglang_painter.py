"""SGLang's diffusion engine: what its processes do to us. `test_painters.py` has what it paints."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from app.errors import EngineDead, SettingsError
from app.ids import RunId
from app.messages.job import Painting
from app.painters.base import PaintRequest, PaintStep
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine

pytestmark = [
    pytest.mark.media,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


def pool(path: Path, args: dict[str, Any], **painting: Any) -> Pool:
    fields = {"model": "p", "engine": "sglang", "task": "image", "path": path, "args": args, "painting": painting}
    return Pool.model_validate(fields)


async def test_a_process_that_dies_ends_its_requests(tmp_path: Path) -> None:
    """SGLang itself waits for its answer for ever."""
    from tests.pipelines import make

    painter: Any = create_engine(pool(make("sd", tmp_path / "sd"), {}))
    await painter.start()
    request = PaintRequest(RunId("a.0"), Painting("a cat", 48, 32, 900, 1))
    try:
        with pytest.raises(EngineDead):
            async with asyncio.timeout(30), aclosing(painter.paint(request)) as steps:
                async for one in steps:
                    if isinstance(one, PaintStep) and one.step == 2:
                        painter._generator._made.local_scheduler_process[0].kill()
        with pytest.raises(EngineDead):
            async with asyncio.timeout(30), aclosing(painter.paint(request)) as steps:
                await anext(steps)
    finally:
        await painter.close()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"gpus": 2}, "args.gpus=2: SGLang's diffusion engine has no such argument"),
        ({"num_gpus": 0}, "args.num_gpus=0"),
        ({"model-path": "x"}, "args.model_path='x'"),
        ({"env": 1}, "args.env=1"),
    ],
)
def test_a_bad_argument_is_named(args: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=said):
        create_engine(pool(tmp_path, args))


async def test_a_model_that_makes_something_else_is_told_at_its_start(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "WanPipeline"}')
    with pytest.raises(SettingsError, match=r"painting\.videos: the model says true"):
        await create_engine(pool(tmp_path, {})).start()
