"""SGLang's models with windows: what the prefix index says of a prompt, and what the engine had of it."""

import json
from pathlib import Path
from random import Random

import pytest

from app.kv.groups import grid
from app.messages.lease import CacheGroup, Grid
from app.runner.engine_factory import create_engine
from ops.models.audit import audit, prompts
from ops.models.loaded import Loaded
from tests.contract.conftest import make_pool
from tests.forkserver import forks_of
from tests.shallow import shallow_model

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::UserWarning"
    ),
]
_LINES = Grid(32, 32, everywhere=False)
# Of its models with windows, one that runs on a CPU.
_MELLUM = {
    "architectures": ["MellumForCausalLM"], "model_type": "mellum", "vocab_size": 49152, "hidden_size": 128,
    "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "max_position_embeddings": 4096, "sliding_window": 128, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "attention_bias": False, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "mlp_layer_types": ["dense"] * 4,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    },
}  # fmt: skip
# On a CPU SGLang reads a window's KV by the other layers' indices, which ends it where these are larger.
_AS_LARGE = 1.0


async def test_the_index_knows_what_sglang_has_cached_of_windows(tmp_path: Path) -> None:
    """Its own events don't tell which windows are left: the plugin in its scheduler does."""
    (tmp_path / "config.json").write_text(json.dumps(_MELLUM))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).symlink_to((shallow_model() / file).resolve())
    args = {"load_format": "dummy", "max_total_tokens": 3072, "swa_full_tokens_ratio": _AS_LARGE}
    with forks_of("sglang"):
        engine = create_engine(make_pool("sglang", path=tmp_path, max_model_len=1024, args=args))
        info = await engine.start()
        try:
            assert info.unindexed == ""
            assert info.groups == (CacheGroup(0, "all", 32), CacheGroup(1, "window", 32, 128))
            assert grid(info.groups) == _LINES
            it = Loaded(engine, info, "", tells_late=True)
            report = await audit(it, [*info.groups], prompts(Random(7), 24), (1, 4, 40))
        finally:
            await engine.close()
    assert (report.wrong, report.off, report.unknown) == (0, 0, 0)
    assert report.cached > 1000, "else there was nothing to predict"
    assert report.evicted, "else nothing was evicted"
