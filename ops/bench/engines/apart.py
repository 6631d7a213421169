"""SGLang with prefill and decode on workers of their own, over NIXL: its answers next to those of one worker."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from ops.bench.engines import pools
from ops.bench.engines.prompts import prompts
from ops.bench.engines.timeline import timeline
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from tests.stack import leases, stack, valkey, wait_until

_PROMPTS, _TOKENS, _QUICK_TOKENS = 20, 64, 24
_SMALLEST_TOKENS = 16  # an answer of fewer may end before the prefill worker has told its times
_AT_A_TIME = 4
_LOADS_S = 480.0
_WORKERS = {"together": 1, "apart": 2}  # of each model


def apart(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """Raises: Unavailable."""
    size.needs("real engines")
    (out_dir / "redis").mkdir(parents=True)
    model, tokens = pools.model_dir(size), size.of(_TOKENS, _QUICK_TOKENS, _SMALLEST_TOKENS)
    entries = {
        "decode-pool-b": pools.sglang_pool(model) | {"model": "together"},
        "prefill-pool-a": pools.sglang_pool(model) | {"model": "apart", "role": "prefill"},
        "decode-pool-a": pools.sglang_pool(model) | {"model": "apart", "role": "decode"},
    }
    try:
        with (
            valkey(out_dir / "redis") as redis,
            stack(redis, out_dir, entries, XYLEM_LEASE_TTL_S="6", **pools.SHARED_CORES) as s,
            httpx.Client(base_url=s.url, timeout=_LOADS_S) as client,
        ):
            s.api()
            say("loading three workers of SGLang")
            for name in entries:
                s.worker(name, name)
            wait_until(lambda: all(leases(s, name) for name in entries), "all workers are there", _LOADS_S)
            say("20 prompts at one worker, and at two")
            together, separate = (_answers(client, name, tokens) for name in _WORKERS)
    except (httpx.HTTPError, AssertionError) as exc:
        raise Unavailable(repr(exc)) from exc
    equal = sum(one == other for one, other in zip(together, separate, strict=True))
    return {
        "sglang_pd": {"prompts": _PROMPTS, "tokens": tokens, "equal": equal},
        "sglang_pd_equal": equal / _PROMPTS,
    }


def _answers(client: httpx.Client, model: str, tokens: int) -> list[list[int]]:
    """Token ids of each answer. Raises: Unavailable, also when one was not computed by as many workers as it should."""

    def ask(prompt: str) -> list[int]:
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        response = client.post("/v1/completions", json=body | {"return_token_ids": True})
        if not response.is_success:
            raise Unavailable(f"{model}: {response.text[:200]}")
        answer = response.json()
        workers = timeline(client, answer["id"])["workers"]
        if len(workers) != _WORKERS[model]:
            raise Unavailable(f"{model}: an answer was computed by {workers}")
        token_ids: list[int] = answer["choices"][0]["token_ids"]
        return token_ids

    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        return list(threads.map(ask, prompts(_PROMPTS)))
