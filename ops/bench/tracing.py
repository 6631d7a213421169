"""`make bench NAME=tracing`: CPU time that tracing adds to a request in the API process, unsampled and sampled.

`measured` is a part, as `parts.py` has them.
"""

import asyncio
import gc
import json
import os
import socket
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from app.api.http import request_trace
from app.cli.probes import free_port
from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.generation import Generation
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.inflight import InFlight
from app.dispatch.models.models import Model
from app.ids import ApiId, PoolId, RequestId, WorkerId
from app.keys import Keys
from app.messages.celery_message import task_messages
from app.messages.events import Delta, Done
from app.messages.job import Sampling, Stage, Timing
from app.messages.lease import Lease, Worker
from app.messages.wire import encode
from app.pools.schema import Pool
from app.routing.candidates import Candidate, Decision, Option, PlaceLimits, Placement, PlacementCost
from app.store import clock
from app.telemetry import Meters
from app.tokenizing.tokenizer import load_tokenizer
from app.tracing.otel import OtelTracer
from app.tracing.tracer import Tracer
from ops.bench.parts import Say, single
from ops.bench.processes import Unavailable, process, wait_until
from ops.bench.size import Size

FIGURES = ("trace_unsampled_us", "trace_sampled_us")
_POOL, _WORKER, _PATH = PoolId("decode-pool-a"), WorkerId("0a1b2c3d"), "/v1/completions"
_CANDIDATES = 8  # as many as a span shows
_CALLER = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"
_TURN = 200  # requests: short turns, so that neighbours find the machine alike
_TURNS, _QUICK_TURNS = 150, 40


class _Answers(Dispatcher):
    """Places a request at once, as far as tracing has to do with it, and has its answer. It has no Redis."""

    def __init__(self) -> None:
        nothing = cast(Any, None)
        super().__init__(nothing, Keys("bench"), ApiId("0a1b2c3d"), nothing, {})
        worker = Worker(_WORKER, _POOL, "both", "host", 1, 64, 1024, 16, 4096)
        option = Option(Candidate(Lease(worker), PlaceLimits(16)))
        options = [(option, PlacementCost(0.1, 0.2, 0.3))] * _CANDIDATES
        self._decision = Decision(Placement(_POOL, _WORKER, 0, 1, 3, 0), options)

    async def send(self, inflight: InFlight) -> None:
        decisions = {} if inflight.log is None else {"decode": self._decision}  # as `PlacementRound.assign` has it
        attempt = inflight.attempt.decided([Stage("decode", _POOL, _WORKER, 0)], "", decisions, behind=False)
        job, now = attempt.job, clock.now()
        task_messages(job, 0, None, "")
        encode(job)
        inflight.attempt = attempt.sent(job, now, in_sequence=False, awaits_first=False)
        inflight.timings = [Timing(_WORKER, now, now, now)]
        inflight.answer.push(Delta(job.request, job.attempt, "a", [1], 0, "length"))
        inflight.answer.push(Done(job.request, job.attempt, 0, inflight.timings))

    async def cancel(self, requests: Sequence[RequestId]) -> None:
        pass

    def spent(self, *_ended: object) -> None:
        pass


def measured(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """CPU-µs that a request costs more, of all threads: medians of turns beside turns without. Raises: Unavailable."""
    if find_spec("rotel") is None:
        raise Unavailable("rotel, the collector, is not installed")
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 5, 80)  # as in the API
    with _collector(directory) as endpoint, patch.dict(os.environ, _environment(endpoint)):
        tracer = OtelTracer()
        try:
            turns = asyncio.run(_turns(tracer, size.of(_TURNS, _QUICK_TURNS, 2), say))
        finally:
            tracer.close()
    (directory / "turns.jsonl").write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    more = {way: statistics.median(turn[way] - turn["off"] for turn in turns) for way in turns[0]}
    return {"trace_unsampled_us": max(more["refused"], more["not_begun"]), "trace_sampled_us": more["sampled"]}


async def _turns(tracer: Tracer | None, most: int, say: Say) -> list[dict[str, float]]:
    pool = Pool(model="bench", engine="mock")
    model = Model("bench", (_POOL,), (), None, load_tokenizer(pool.model_dir), 4096, Meters("bench"))
    plan = GenerationPlan("cmpl-", model, [[1, 2, 3]], [Sampling(1)], timeout_s=60)
    answers = _Answers()
    ways: Mapping[str, tuple[Tracer | None, bytes]] = {
        "off": (None, _CALLER + b"01"),
        "refused": (tracer, _CALLER + b"00"),
        "not_begun": (tracer, b""),
        "sampled": (tracer, _CALLER + b"01"),
    }
    turns = []
    for number in range(most + 1):  # the first warms up
        say(f"turn {number} of {most}")
        turns.append({name: await _turn(plan, answers, *way) for name, way in ways.items()})
    return turns[1:]


async def _turn(plan: GenerationPlan, answers: Dispatcher, tracer: Tracer | None, traceparent: bytes) -> float:
    """CPU-µs a request, exporting included."""
    headers = {b"content-type": b"application/json", b"traceparent": traceparent}
    began = time.process_time()
    for _ in range(_TURN):
        scope: dict[str, Any] = {"path": _PATH, "method": "POST", "headers": [*headers.items()]}
        request_trace.begin(tracer, {_PATH}, scope, headers)
        request_trace.body_read(scope)
        async with Generation(plan, dispatcher=answers, trace=request_trace.trace_of(scope)) as call:
            await call.whole()
        request_trace.end(scope, 200)
    if isinstance(tracer, OtelTracer):
        tracer._processor.force_flush()  # noqa: SLF001 (exporting is a part of the cost)
    return (time.process_time() - began) / _TURN * 1e6


@contextmanager
def _collector(directory: Path) -> Iterator[str]:
    """One that forgets what it takes; yields its address."""
    import rotel

    grpc, http = free_port(), free_port()
    command = [
        str(Path(rotel.__file__).parent / "rotel-agent"), "start", "--exporter", "blackhole",
        "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}", "--otlp-http-endpoint", f"127.0.0.1:{http}",
    ]  # fmt: skip
    log = directory / "collector.log"
    with process(command, log) as child:
        wait_until(lambda: _listens(grpc), 10, {log: child})
        yield f"http://127.0.0.1:{grpc}"


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def _environment(endpoint: str) -> dict[str, str]:
    """Clients say what is sampled; and a queue that has room for a turn: nothing is dropped unexported."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0",
        "OTEL_BSP_MAX_QUEUE_SIZE": str(20 * _TURN),
    }


if __name__ == "__main__":
    single("tracing", "Measure what tracing costs the API.", FIGURES, measured)
