"""The measures of `serve`: the load, its figure, and the target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ops.bench.load import Line
from ops.bench.size import Size
from ops.bench.stats import Compare


@dataclass(frozen=True)
class Measure:
    """One load on two systems. `requests` are for a full run, `quick_requests` for a quick one."""

    key: str
    title: str
    unit: str
    figure: Callable[[Line], float]
    load: Sequence[str]
    requests: int
    quick_requests: int
    target: float
    compare: Compare = "ratio"
    at_least: bool = False
    more: Sequence["Measure"] = ()  # further figures of the same runs

    def options(self, size: Size, seed: int) -> list[str]:
        """Arguments of the load generator. Each repetition has its own seed, so that its unique prompts are new."""
        count = size.of(self.requests, self.quick_requests, 16)
        limit = size.of("120", "20", "20")
        arguments = ["--label", self.key, "--requests", str(count), "--max-seconds", limit, "--seed", str(seed)]
        return [*self.load, *arguments, *size.of([], [], SMALLEST)]


def _more(key: str, title: str, unit: str, figure: Callable[[Line], float], target: float, **how: Any) -> Measure:
    """A further figure of another measure's runs."""
    return Measure(key, title, unit, figure, (), requests=0, quick_requests=0, target=target, **how)


def _load(**options: Any) -> list[str]:
    """prompt_words=5, stream=True → ["--prompt-words", "5", "--stream"]"""
    flags = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    return list(chain.from_iterable([flag] if value is True else [flag, str(value)] for flag, value in flags.items()))


def api_ms_per_request(line: Line) -> float:
    return 1e3 * _api_cpu_s(line) / int(line["ok"])


def api_s_per_million_tokens(line: Line) -> float:
    return 1e6 * _api_cpu_s(line) / int(line["out_tokens"])


def ttft_p50_ms(line: Line) -> float:
    return float(line["ttft_ms"]["p50"])


def tokens_per_s(line: Line) -> float:
    return float(line["tok_s"])


def requests_per_s(line: Line) -> float:
    return float(line["req_s"])


def worker_ms_per_request(line: Line) -> float:
    return 1e3 * float(line["cpu"]["workers"]["cpu_s"]) / int(line["ok"])


def fleet_ms_per_request(line: Line) -> float:
    return 1e3 * _fleet_cpu_s(line) / int(line["ok"])


def fleet_s_per_million_tokens(line: Line) -> float:
    return 1e6 * _fleet_cpu_s(line) / int(line["out_tokens"])


def _fleet_cpu_s(line: Line) -> float:
    """CPU seconds of all parts of the system; Dynamo's has neither etcd nor NATS here."""
    return sum(float(part["cpu_s"]) for part in line["cpu"].values())


def _api_cpu_s(line: Line) -> float:
    return float(line["cpu"]["api"]["cpu_s"])


SMALLEST = _load(concurrency=4, warmup=1)
SHORT = _load(concurrency=64, max_tokens=1, warmup=128)
STREAMS = _load(concurrency=64, max_tokens=128, warmup=64, stream=True)

# Engines without delay: this measures the system around them.
FAST = (
    Measure(
        "api_cpu_per_request_ratio", "short request, 1 token, 64 connections", "API CPU-ms / request",
        api_ms_per_request, SHORT, requests=6000, quick_requests=1500, target=0.7,
        more=(
            _more(
                "worker_cpu_ms_per_request", "short request", "workers' CPU-ms / request",
                worker_ms_per_request, 0.5, compare="ours",
            ),
            _more(
                "fleet_cpu_per_request_ratio", "short request", "CPU-ms of the whole / request",
                fleet_ms_per_request, 1.25,
            ),
            _more("requests_per_s_ratio", "short request", "requests / s", requests_per_s, 0.8, at_least=True),
        ),
    ),
    Measure(
        "api_cpu_per_token_saturated_ratio", "128-token streams, 64 connections, saturated", "API CPU-s / 1M tokens",
        api_s_per_million_tokens, STREAMS, requests=1280, quick_requests=384, target=0.4,
        more=(
            _more(
                "fleet_cpu_per_token_ratio", "128-token streams, saturated", "CPU-s of the whole / 1M tokens",
                fleet_s_per_million_tokens, 1.0,
            ),
        ),
    ),
    Measure(
        "long_prompt_cpu_ratio", "unique 4,000-token prompt, 4 connections", "API CPU-ms / request",
        api_ms_per_request, _load(concurrency=4, max_tokens=1, prompt="unique", prompt_words=3970, warmup=8),
        requests=240, quick_requests=80, target=0.7,
    ),
    Measure(
        "ttft_p50_delta_ms", "time to first token, 1 connection", "ms, p50",
        ttft_p50_ms, _load(concurrency=1, max_tokens=1, warmup=20, stream=True),
        requests=500, quick_requests=200, target=1.0, compare="delta",
    ),
)  # fmt: skip

PACED = Measure(
    "api_cpu_per_token_ratio", "128-token streams, 64 connections, an engine's pace", "API CPU-s / 1M tokens",
    api_s_per_million_tokens, STREAMS, requests=640, quick_requests=192, target=0.3,
)  # fmt: skip

VLLM = Measure(
    "vllm_throughput_ratio", "real vLLM, 8 streams", "output tokens / s",
    tokens_per_s, _load(concurrency=8, max_tokens=48, warmup=1, stream=True, extra_body='{"ignore_eos": true}'),
    requests=48, quick_requests=16, target=0.97, at_least=True,
    more=(
        _more(
            "vllm_ttft_p50_delta_ms", "real vLLM, 8 streams", "time to first token, ms, p50",
            ttft_p50_ms, 10.0, compare="delta",
        ),
    ),
)  # fmt: skip

MEMORY_KEY = "rss_growth_mb"
