"""SGLang's own pipelines, which call kernels that CPUs lack: a picture and a video, the same again."""

from typing import Any

import pytest

from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from tests.gpu.place import Place, installed
from tests.gpu.trtllm_cases import VIDEO, painted

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore"), pytest.mark.cuda]
_NATIVE = {"flux": "FLUX.1-dev", "wan": "Wan2.1-T2V-1.3B-Diffusers"}  # by these names SGLang knows its own pipelines


@pytest.mark.parametrize("name", installed("sglang"))
@pytest.mark.parametrize(("pipeline", "more"), [("flux", {}), ("wan", VIDEO)])
async def test_its_own_pipelines_paint_the_same_bytes_for_the_same_request(
    place: Place, name: str, pipeline: str, more: dict[str, Any]
) -> None:
    fields = {"model": "p", "engine": name, "task": "image", "path": place.paints(pipeline)}
    args = {"model_id": _NATIVE[pipeline]}
    painter: Any = create_engine(Pool.model_validate(fields | {"args": args, "painting": {"videos": bool(more)}}))
    await painter.start()
    try:
        files = [await painted(painter, seed, **more) for seed in (1, 1, 2)]
        assert files[0] == files[1] != files[2]
    finally:
        await painter.close()
