"""Keys of a pools file that change nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from app.api.main import create_app
from app.pools.schema import Pool, PoolsFile
from app.pools.without_effect import RULES, without_effect
from app.settings import Settings
from tests.stack import ROOT

TEMPLATE = ROOT / "tests/chaos/template.jinja"
PAINTS: dict[str, Any] = {"task": "image"}
# Keys that change something in each pool that `pools_file.py` takes, or only with an engine that says so itself.
ALWAYS = set("""
    model engine path task role peers max_running data_parallel_size tensor_parallel_size nodes busy aside scale
    sleep_level wake_on_request args args_file endpoints routing tiers busy.max_queued busy.active_blocks
    busy.queued_tokens busy.max_held aside.step_share aside.prefill_share routing.policy routing.temperature
    routing.affinity_s tiers.host_gb tiers.disk tiers.disk_gb tiers.shared tiers.key_file scale.least scale.most
    scale.gpus scale.hosts scale.kind reasoning.begin reasoning.end reasoning.begun painting.size painting.sizes
    painting.multiple_of painting.max_pixels painting.steps painting.max_steps painting.guidance painting.videos
    disagg.remote_tokens disagg.remote_wait_s
""".split())  # fmt: skip


def keys(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield above + name
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from keys(kind, f"{above}{name}.")


def file_of(**fields: Any) -> PoolsFile:
    """A file whose pool `p` has these, beside the pool that decodes for it."""
    pool = {"model": "m", "engine": "mock", **fields}
    return PoolsFile.model_validate({"pools": {"p": pool, "other": {"model": "m", "engine": "mock"}}})


# By key: a pool in which it changes nothing, and one in which it does.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "chat_template": ({"endpoints": ["completions"]}, {"endpoints": ["completions", "messages"]}),
    "reasoning": ({"task": "embed"}, {}),
    "dialect": ({"endpoints": ["completions"]}, {"endpoints": ["responses"]}),
    "reasoning_field": ({"endpoints": ["completions"]}, {}),
    "generation_config": ({"task": "transcribe"}, {}),
    "prompt_embeds": ({"endpoints": ["chat"]}, {"endpoints": ["completions"]}),
    "embeddings": ({}, {}),
    "block_size": (PAINTS, {"task": "embed"}),
    "max_model_len": (PAINTS, {"task": "embed"}),
    "tokenizer_mode": (PAINTS, {"task": "embed"}),
    "disagg": ({}, {"role": "prefill"}),
    "warm_up": ({"role": "decode"}, {"task": "transcribe"}),
    "routing.prefill_weight": ({"routing": {"policy": "random"}}, {}),
    "routing.predicted_ttl_s": ({"routing": {"policy": "least_loaded"}}, {}),
    "tiers.disk_look_s": ({"tiers": {"host_gb": 1}}, {"tiers": {"host_gb": 1, "disk": "/kv"}}),
    "painting": ({}, PAINTS),
    "painting.fps": (PAINTS, {**PAINTS, "painting": {"videos": True}}),
    "painting.seconds": (PAINTS, {**PAINTS, "painting": {"videos": True}}),
    "painting.max_seconds": (PAINTS, {**PAINTS, "painting": {"videos": True}}),
    "painting.quality_steps": ({**PAINTS, "painting": {"videos": True}}, PAINTS),
}
VALUES: dict[str, Any] = {
    "chat_template": TEMPLATE, "reasoning": {"begin": "<a>"}, "dialect": "hermes", "reasoning_field": "reasoning",
    "generation_config": "none", "tokenizer_mode": "engine", "prompt_embeds": True, "embeddings": True,
    "disagg": {"remote_tokens": 1}, "painting": {"steps": 2}, "warm_up": False, "painting.quality_steps": {"low": 1},
}  # fmt: skip


def with_key(pool: dict[str, Any], key: str) -> dict[str, Any]:
    above, _, last = key.rpartition(".")
    value = VALUES.get(key, 1)
    return {**pool, above: {**pool.get(above, {}), last: value}} if above else {**pool, key: value}


def test_each_key_of_a_pool_is_known_to_change_something_always_or_beside_what() -> None:
    """A new key needs a decision."""
    assert ALWAYS & RULES.keys() == set()
    assert set(keys(Pool)) == ALWAYS | RULES.keys()


@pytest.mark.parametrize("key", RULES)
def test_a_key_is_told_where_it_changes_nothing_and_only_there(key: str) -> None:
    idle, busy = CASES[key]
    assert without_effect(file_of(**with_key(idle, key))).keys() == {f"pools.p.{key}"}
    assert without_effect(file_of(**idle)) == {}
    if key != "embeddings":  # a pool of another role is needed
        assert without_effect(file_of(**with_key(busy, key))) == {}


def test_pictures_that_others_encode_need_a_pool_that_does() -> None:
    encoder = {"model": "m", "engine": "mock", "role": "encode"}
    pool = {"model": "m", "engine": "mock", "embeddings": True}
    assert without_effect(PoolsFile.model_validate({"pools": {"p": pool, "e": encoder}})) == {}


def test_what_is_told_names_what_is_in_the_way() -> None:
    assert without_effect(file_of(chat_template=TEMPLATE, endpoints=["completions"])) == {
        "pools.p.chat_template": "has no effect beside endpoints: [completions]"
    }
    file = {"pools": {"p": {"model": "m", "engine": "mock"}}, "planner": {"gpus": 3}}
    assert without_effect(PoolsFile.model_validate(file)) == {
        "planner.gpus": "has no effect without planner.objectives"
    }


def test_a_server_says_so_at_its_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pools.yaml"
    pool = f"{{model: m, engine: mock, chat_template: {TEMPLATE}, endpoints: [completions]}}"
    file.write_text(f"pools: {{texts: {pool}, all: {{model: other, engine: mock}}}}")
    create_app(Settings(pools_file=file, home=tmp_path))
    [line] = [line for line in "".join(capsys.readouterr()).splitlines() if "pool_key_without_effect" in line]
    assert "pools.texts.chat_template has no effect beside endpoints: [completions]" in line
