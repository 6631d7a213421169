"""A model whose layers keep KV differently, on real vLLM: a prompt goes where it can be resumed, as is foretold."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ops.models.architectures import written
from tests.chaos.fleet import Fleet
from tests.shallow import shallow_model
from tests.stack import indexed_blocks, wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.media]

POOL, MODEL = "decode-pool-a", "hybrid"
BLOCK, STEP = 32, 512  # tokens of a block; between two points where all its layers can resume
ENV = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    model = written("gemma4", tmp_path_factory.mktemp("model"), shallow_model())
    engine = {
        "model": MODEL, "engine": "vllm", "path": str(model), "block_size": BLOCK, "max_model_len": 2048,
        "max_running": 4,
        "args": {"load_format": "dummy", "enforce_eager": True, "kv_cache_memory_bytes": 2**26},
    }  # fmt: skip
    with Fleet(tmp_path_factory.mktemp("hybrid") / "fleet", {POOL: engine}, apis=1, workers=2, **ENV) as f:
        yield f


def asked(fleet: Fleet, prompt: list[int]) -> tuple[dict[str, Any], int]:
    """Its route, and the cached tokens."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    url = f"{fleet.urls()[0]}/v1/completions"
    answer = httpx.post(url, json=body, headers={"x-xylem-explain": "1"}, timeout=300)
    assert answer.status_code == 200, answer.text
    details = answer.json()["usage"].get("prompt_tokens_details") or {}
    return json.loads(answer.headers["x-xylem-route"])[0], details.get("cached_tokens") or 0


def test_a_prompt_goes_to_the_worker_that_can_resume_it_and_its_cached_tokens_are_foretold(fleet: Fleet) -> None:
    common_tokens, homes = [(number * 37) % 40_000 + 100 for number in range(1100)], set()
    for number in range(1, 5):
        prompt = [number, *common_tokens]
        first, cached_tokens = asked(fleet, prompt)
        assert (first["blocks_cached"], cached_tokens) == (0, 0)
        wait_until(lambda least=number: indexed_blocks(fleet.stack, POOL) >= least, "the index has its last point")
        for longer in (prompt, prompt + [7] * 200):
            route, cached_tokens = asked(fleet, longer)
            assert (route["worker"], cached_tokens) == (first["worker"], 2 * STEP)
            prediction = route["blocks_cached"], route["tokens_to_compute"]
            assert prediction == (2 * STEP // BLOCK, len(longer) - 2 * STEP)
        homes.add(first["worker"])
    assert len(homes) == 2, "else nothing was chosen"


def test_a_prompt_that_shares_a_part_only_is_computed_anew_as_is_foretold(fleet: Fleet) -> None:
    """No layer with a window can go on in the middle of the prompt.

    The predictions of all answers here were exact.
    """
    common_tokens = [(number * 41) % 40_000 + 100 for number in range(600)]
    counts = []
    for about in (1, 2):
        route, had = asked(fleet, [*common_tokens, about, *[(number * 43 + about) % 40_000 for number in range(500)]])
        counts.append((route["blocks_cached"] * BLOCK, had))
    assert counts[0] == (0, 0)
    assert all(foretold == had for foretold, had in counts)
    assert counted(fleet, "audited") >= 14
    assert counted(fleet, "audits_wrong") == counted(fleet, "audit_error_tokens") == 0


def counted(fleet: Fleet, what: str) -> float:
    name = f'xylem_routing_{what}_total{{pool="{POOL}"}} '
    lines = httpx.get(f"{fleet.urls()[0]}/metrics").text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))
