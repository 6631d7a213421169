"""The examples of pools files."""

from pathlib import Path

import pytest

from app.model_store.source import RemoteModel
from app.pools import load_pools

EXAMPLES = sorted((Path(__file__).parents[2] / "ops" / "pools").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_parses(file: Path) -> None:
    assert load_pools(file).pools


def test_there_is_one_for_each_engine_and_mode() -> None:
    files = [load_pools(file) for file in EXAMPLES]
    pools = [pool for file in files for pool in file.pools.values()]
    assert {(pool.engine, pool.role) for pool in pools} >= {
        (engine, role) for engine in ("mock", "vllm") for role in ("both", "prefill", "decode")
    }
    assert {pool.task for pool in pools} >= {"generate", "embed"}
    assert any(isinstance(pool.path, RemoteModel) for pool in pools)
    assert any(pool.data_parallel_size > 1 for pool in pools)
    assert any(file.aliases for file in files)
