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
from ops.bench.systems import fleet

_PROMPTS, _TOKENS, _QUICK_TOKENS = 20, 64, 24
_AT_A_TIME = 4
_PREFILL, _DECODE = "prefill-pool-a", "decode-pool-a"


def apart(out_dir: Path, quick: bool, say: Say) -> dict[str, Any]:
    """Raises: Unavailable."""
    out_dir.mkdir(parents=True)
    tokens = _QUICK_TOKENS if quick else _TOKENS
    say("one worker of SGLang")
    together = _answers(out_dir / "together", {_DECODE: "both"}, tokens)
    say("two workers of SGLang, prefill and decode")
    separate = _answers(out_dir / "apart", {_PREFILL: "prefill", _DECODE: "decode"}, tokens)
    equal = sum(one == other for one, other in zip(together, separate, strict=True))
    return {
        "sglang_pd": {"prompts": _PROMPTS, "tokens": tokens, "equal": equal},
        "sglang_pd_equal": equal / _PROMPTS,
    }


def _answers(run_dir: Path, roles: dict[str, str], tokens: int) -> list[list[int]]:
    """Token ids of each answer. Raises: Unavailable, also when one was not computed by all of the workers."""
    entries = {name: pools.sglang_pool(role) for name, role in roles.items()}
    with (
        fleet(run_dir, entries, dict.fromkeys(entries, 1), more_env=pools.ONE_THREAD) as system,
        httpx.Client(base_url=system.url, timeout=300) as client,
        ThreadPoolExecutor(_AT_A_TIME) as threads,
    ):

        def ask(prompt: str) -> list[int]:
            body = {"model": system.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
            answered = client.post("/v1/completions", json=body | {"return_token_ids": True})
            if not answered.is_success:
                raise Unavailable(f"{run_dir.name}: {answered.text[:200]}")
            answer = answered.json()
            computed = timeline(client, answer["id"])["workers"]
            if len(computed) != len(roles):
                raise Unavailable(f"{run_dir.name}: an answer was computed by {computed}")
            made: list[int] = answer["choices"][0]["token_ids"]
            return made

        return list(threads.map(ask, prompts(_PROMPTS)))
