"""Rehearses the checks of `make gpu` that need no GPU: TensorRT-LLM's on its double, others on the mock."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu import cases
from tests.gpu.place import Place
from tests.gpu.trtllm_cases import *  # noqa: F403 (it has tests only)
from tests.trtllm.double import installed
from tests.trtllm.model import MOCK
from tests.trtllm.pictures import WIDTH
from tests.vlm import random_vlm

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

_MOCK = {"speedup": 50.0, "total_blocks": 64, "answer_tokens": 900}
_SEES = {"media": ["image"], "embedding_width": WIDTH}
_PIPELINES = {"flux": "FluxPipeline", "wan": "WanPipeline"}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    folders = {}
    for name, pipeline in _PIPELINES.items():
        folders[name] = tmp_path / name
        folders[name].mkdir()
        (folders[name] / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
    own = {"mock": _MOCK, "trtllm": {"env": {MOCK: json.dumps(_MOCK | _SEES)}}}
    with installed():
        yield Place(own, None, random_vlm("qwen2_vl", weights=False), folders.__getitem__)


async def test_the_mock_hands_a_prompt_over(place: Place) -> None:
    await cases.a_prompt_is_handed_over(place, "mock")


async def test_the_mocks_seeds_give_the_same_answer(place: Place) -> None:
    await cases.a_seed_gives_the_same_answer(place, "mock")
