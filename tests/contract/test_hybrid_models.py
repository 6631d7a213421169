"""Twelve of today's architectures on real vLLM: each answers, alike from its cache, and as the index foretells."""

from pathlib import Path

import pytest

from app.kv.groups import grid, leaves
from app.messages.lease import Grid
from ops.models.apart import apart
from ops.models.architectures import written
from ops.models.cell import right
from ops.models.loaded import Model, loaded
from ops.models.log import Log
from ops.models.plain import answers, foretold, from_cache, groups_of
from tests.forkserver import forks_of
from workers.engine.kv_indices import why_unindexed

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]
_TOKENIZER = Path("app/engines/mock/model")  # a small one: to load that of a model takes vLLM two seconds
_PROMPTS, _LENGTHS = 20, (1, 4, 40)


def _states() -> Grid:
    """The lines of Qwen 3.5: where the CPU has bfloat16, vLLM keeps states in float32, each as large as a block."""
    import torch

    return Grid(*[544 if torch.cpu._is_avx512_bf16_supported() else 288] * 2, everywhere=False)


# Of each: blocks, so few that some are evicted; what its prompts are hashed by (None: as `_states` says); tokens
# between the points they leave.
MODELS = {
    "gemma2": (90, Grid(32, 32, everywhere=False), 0),
    "gemma3": (220, Grid(32, 32, everywhere=False), 0),
    "gemma4": (80, Grid(32, 512, everywhere=False), 0),
    "glm4_moe": (50, Grid(32, 32, everywhere=True), 32),
    "gpt_oss": (90, Grid(32, 32, everywhere=False), 0),
    "lfm2": (180, Grid(32, 32, everywhere=False), 0),
    "llama": (50, Grid(32, 32, everywhere=True), 32),
    "llama4": (180, Grid(32, 32, everywhere=False), 32),
    "mistral": (70, Grid(32, 32, everywhere=False), 32),
    "olmo3": (150, Grid(32, 32, everywhere=False), 0),
    "qwen3_5": (24, None, 0),
    "qwen3_moe": (50, Grid(32, 32, everywhere=True), 32),
}
MORE = {"mistral": {"prefix_cache_retention_interval": None}}  # args: it has windows only


@pytest.mark.parametrize("name", MODELS)
async def test_a_model_answers_alike_from_its_cache_whose_content_is_foretold(name: str, tmp_path: Path) -> None:
    """A bfloat16 model answers only about alike."""
    blocks, lines, between = MODELS[name]
    model = Model(name, written(name, tmp_path, _TOKENIZER), Log(tmp_path / "log"), (blocks,))
    with forks_of("vllm"):
        async with loaded(model, args=MORE.get(name, {})) as it:
            groups = groups_of(it)
            assert (why_unindexed(it.info), grid(groups), leaves(groups)) == ("", lines or _states(), between)
            results = [await answers(it), await from_cache(it), await foretold(it, _PROMPTS, _LENGTHS)]
    assert results == [right(), right(), right(f"{_PROMPTS}")]


async def test_a_model_with_states_answers_behind_another_engines_prefill_as_alone(tmp_path: Path) -> None:
    """Its prefill engine computes the prompt without its last token, so the first token is the decode engine's."""
    model = Model("falcon_h1", written("falcon_h1", tmp_path, _TOKENIZER), Log(tmp_path / "log"))
    with forks_of("vllm"):
        assert await apart(model) == right()


async def test_a_model_that_sees_and_hears_starts_where_the_pool_lets_no_media_in(tmp_path: Path) -> None:
    """vLLM has no processor then, whose limits the worker would ask for."""
    model = Model("qwen3_omni", written("qwen3_omni", tmp_path, _TOKENIZER), Log(tmp_path / "log"))
    with forks_of("vllm"):
        async with loaded(model) as it:
            assert (it.info.media, await answers(it)) == ((), right())
