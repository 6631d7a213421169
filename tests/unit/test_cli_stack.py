"""Processes that `xylem up` starts, and their arguments."""

from pathlib import Path

import pytest

from app.cli import stack
from app.cli.launch import names_to_try
from app.ids import PoolId
from app.pools.pools_file import load_pools
from app.pools.schema import Pool
from app.settings import load_settings
from tests.stack import ROOT


@pytest.mark.parametrize(
    ("cores", "count", "shares"),
    [
        ([0, 1], 1, ["0,1"]),
        ([0, 1, 2, 3], 1, ["1,2,3"]),
        ([0, 1, 2, 3], 2, ["0,1", "2,3"]),
        ([4, 6, 8], 2, ["4", "6"]),
        ([0, 1], 3, ["0", "1", "0"]),
        ([0], 0, []),
    ],
)
def test_engines_get_cores_of_their_own(cores: list[int], count: int, shares: list[str]) -> None:
    """Two vLLM engines on the same cores slow each other ten-fold; a core is left to the rest where one is to spare."""
    assert stack.cpu_shares(cores, count) == shares


@pytest.mark.parametrize("engine", ["vllm", "sglang", "mock"])
def test_the_shipped_pools_files_parse(engine: str, tmp_path: Path) -> None:
    """The files are package data, which no type checker sees."""
    (tmp_path / "pools.yaml").write_text(stack.shipped_pools(engine, tmp_path))
    (pool,) = load_pools(tmp_path / "pools.yaml").pools.values()
    assert pool.engine == engine
    assert pool.path == (stack.shipped_model(tmp_path) if engine != "mock" else None)


def test_the_pools_of_shapes_serve_the_models_made_here(tmp_path: Path) -> None:
    """One sees, and one paints; each is prepared where it is missing, by a command of its own."""
    (tmp_path / "pools.yaml").write_text(stack.shipped_pools("shapes", tmp_path))
    pools = load_pools(tmp_path / "pools.yaml").pools.values()
    assert {pool.task for pool in pools} == {"generate", "image"}
    for pool in pools:
        assert pool.path == stack.shipped_model(tmp_path, pool.model)
        assert stack.needs_preparation(pool.path, tmp_path)
        assert stack.model(pool.path).argv[2:4] == ["app.demo_models.shapes", str(pool.path)]


def test_a_model_of_each_task_and_every_pipeline_is_shown_to_be_tried() -> None:
    """A pipeline by what its last stage does."""
    assert [*names_to_try(load_pools(ROOT / "ops/pools/pipelines.yaml")).items()] == [
        ("writer", "generate"),
        ("listener", "transcribe"),
        ("painter", "image"),
        ("illustrate", "image"),
        ("narrate", "generate"),
    ]


def test_the_shipped_model_is_prepared_only_where_it_is_missing(tmp_path: Path) -> None:
    """A second start is quick, and nobody else's directory is ever written to."""
    model = stack.shipped_model(tmp_path)
    assert stack.needs_preparation(model, tmp_path)
    assert not stack.needs_preparation(tmp_path / "another", tmp_path)
    model.mkdir(parents=True)
    (model / "config.json").touch()
    assert not stack.needs_preparation(model, tmp_path)


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:8000"), ("0.0.0.0", "http://127.0.0.1:8000"), ("::1", "http://[::1]:8000")],
)
def test_the_url_shown_can_be_opened(host: str, url: str) -> None:
    """0.0.0.0 is an address to listen on, not one to go to."""
    assert stack.base_url(load_settings(host=host)) == url


def test_every_process_gets_the_same_settings_as_absolute_paths(tmp_path: Path) -> None:
    """The paths may be read in another directory."""
    settings = load_settings(home=Path("relative"), pools_file=Path("pools.yaml"), redis_url="redis://r:1/0")
    env = stack.environment(settings)
    assert Path(env["XYLEM_HOME"]).is_absolute()
    assert Path(env["XYLEM_POOLS_FILE"]).is_absolute()
    assert env["XYLEM_REDIS_URL"] == "redis://r:1/0"


def test_an_engine_of_several_nodes_has_a_process_for_each() -> None:
    pools = {PoolId("a"): Pool(model="m", engine="mock", nodes=3, data_parallel_size=3)}
    components = stack.workers(pools, {PoolId("a"): 2}, load_settings(), {})
    assert [component.name for component in components[PoolId("a")]] == [f"a-{number}" for number in range(1, 7)]


def test_workers_have_gpus_of_their_own_out_of_those_that_this_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes share an environment that has all of them in CUDA_VISIBLE_DEVICES."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    settings, a, b = load_settings(), PoolId("a"), PoolId("b")
    pools = {
        a: Pool(model="m", engine="vllm", path=Path("/models/m")),
        b: Pool(model="n", engine="vllm", path=Path("/models/n"), tensor_parallel_size=2),
    }
    parts = stack.workers(pools, {a: 1, b: 1}, settings, stack.environment(settings))
    assert [part.env["CUDA_VISIBLE_DEVICES"] for pool in (a, b) for part in parts[pool]] == ["4", "5,6"]
    crowd = stack.workers(pools, {a: 2, b: 1}, settings, stack.environment(settings))
    assert {part.env["CUDA_VISIBLE_DEVICES"] for pool in (a, b) for part in crowd[pool]} == {"4,5,6"}
