"""Answers that begin on vLLM and go on on SGLang, and the other way round, when the worker that computes is killed."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from ops.bench.engines import pools
from ops.bench.engines.forced import Begun, forced_gaps, streamed
from ops.bench.engines.prompts import prompts
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from tests.stack import Stack, leases, stack, valkey, wait_until

_PROMPTS, _QUICK_PROMPTS = 50, 8
_TOKENS = 64
_BEFORE = 8  # tokens that each answer has when its worker is killed
_CLOSE = 1e-2  # of logprob
_LOADS_S = 480.0
_VLLM, _SGLANG = "decode-pool-v", "decode-pool-s"
_ENV = {
    "XYLEM_STALL_S": "600",  # a frozen engine is not a hanging one
    "XYLEM_PATIENCE_S": str(_LOADS_S),
    "XYLEM_LEASE_TTL_S": "6",  # for busy machines
    **pools.SHARED_CORES,
}


def migration(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """Raises: Unavailable."""
    size.needs("real engines")
    (out_dir / "redis").mkdir(parents=True)
    model = pools.model_dir(size)
    entries = {_VLLM: pools.vllm_pool(model), _SGLANG: pools.sglang_pool(model)}
    texts = prompts(size.of(_PROMPTS, _QUICK_PROMPTS, 2))
    try:
        with valkey(out_dir / "redis") as url, stack(url, out_dir, entries, **_ENV) as s:
            s.api()
            return _both_ways(_Engines(s, say), texts)
    except (httpx.HTTPError, AssertionError) as exc:
        raise Unavailable(f"migration: {exc!r}") from exc


def _both_ways(engines: "_Engines", asked: Sequence[str]) -> dict[str, Any]:
    """Each engine's pool is one worker. vLLM stands still, and gets nothing, while SGLang is to have all requests."""
    url, say = engines.url, engines.say
    engines.start(_VLLM)
    say("migration: undisturbed")
    usual = _all(url, asked)

    def to_sglang() -> None:
        engines.admin("pause", mode="keep")
        engines.start(_SGLANG)
        engines.kill(_VLLM)

    def to_vllm() -> None:
        engines.admin("resume")
        engines.kill(_SGLANG)

    say("migration: from vLLM to SGLang")
    there = _all(url, asked, to_sglang)
    say("migration: what SGLang thinks of these answers")
    by_sglang = forced_gaps(url, there)
    engines.start(_VLLM)  # its pool is still paused
    say("migration: from SGLang to vLLM")
    back = _all(url, asked, to_vllm)
    say("migration: what vLLM thinks of all answers")
    by_vllm = forced_gaps(url, [*there, *back])
    engines.admin("pause", mode="wait")
    engines.start(_SGLANG)
    say("migration: what SGLang thinks of the others")
    by_sglang += forced_gaps(url, back)
    return _figures(usual, there, back, list(map(max, by_sglang, by_vllm)))


def _figures(
    usual: Sequence[Begun], there: Sequence[Begun], back: Sequence[Begun], gaps: Sequence[float]
) -> dict[str, Any]:
    """`gaps`: of each token, from the best one's logprob, at the engine that likes it less."""
    equal = [one.text == other.text for answers in (there, back) for one, other in zip(usual, answers, strict=True)]
    return {
        "migrate": {
            "to SGLang": {"answers": len(there), "equal": sum(equal[: len(there)])},
            "to vLLM": {"answers": len(back), "equal": sum(equal[len(there) :])},
        },
        "migrate_engines_close": sum(gap <= _CLOSE for gap in gaps) / len(gaps),
        "migrate_equal_texts": sum(equal) / len(equal),
        "migrate_worst_gap": max(gaps),
    }


def _all(url: str, asked: Sequence[str], then: Callable[[], None] | None = None) -> list[Begun]:
    """`then` is called when all answers have begun. Raises: Unavailable when one has ended before."""
    answers = [Begun() for _ in asked]
    with ThreadPoolExecutor(len(asked)) as threads:
        both = zip(asked, answers, strict=True)
        reading = [threads.submit(streamed, url, prompt, _TOKENS, answer) for prompt, answer in both]
        wait_until(lambda: _begun(reading, answers), "all answers have begun", _LOADS_S)
        if then is not None:
            if early := sum(len(answer.tokens) == _TOKENS for answer in answers):
                raise Unavailable(f"{early} of {len(asked)} answers had ended before all had begun")
            then()
        for one in reading:
            one.result()
    return answers


def _begun(reading: "Sequence[Future[None]]", answers: Sequence[Begun]) -> bool:
    """Raises what has gone wrong with one."""
    for one in reading:
        if one.done():
            one.result()
    return all(len(answer.tokens) >= _BEFORE for answer in answers)


class _Engines:
    """One worker for each."""

    def __init__(self, s: Stack, say: Say) -> None:
        self._stack, self.url, self.say = s, s.url, say
        wait_until(lambda: s.ready() is not None, "the API answers")

    def start(self, pool: str) -> None:
        """Blocks until it is there."""
        self.say(f"migration: loading {pool}")
        worker = self._stack.worker(pool, pool)

        def there() -> bool:
            assert worker.poll() is None, f"{pool} has ended: {self._stack.log(pool)[-300:]}"
            return any(lease.worker.pid == worker.pid for lease in leases(self._stack, pool))

        wait_until(there, f"{pool} is there", _LOADS_S)

    def kill(self, pool: str) -> None:
        self._stack.names[pool].kill()

    def admin(self, what: str, **body: str) -> None:
        """Sends an admin command to vLLM's pool: SGLang can't be paused."""
        answer = httpx.post(f"{self.url}/admin/pools/{_VLLM}/{what}", json=body, timeout=_LOADS_S)
        answer.raise_for_status()
