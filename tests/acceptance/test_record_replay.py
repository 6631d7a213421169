"""`xylem record` and `xylem replay` with real processes: traffic becomes a trace, and the trace the same traffic."""

import gzip
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.trace import Request, read_trace, write_trace
from app.messages.recording import decode_recording
from tests.serving import replica_of, served_by
from tests.stack import BIN, ROOT, Stack, free_port, mock_pool, stop, wait_until

POOL = "decode-pool-a"
SECRET = "pelican"  # in every prompt
GROUPS, TURNS, ANSWER = 4, 6, 8
SHARED = 1600  # tokens, about: three blocks of the trace, and a part of the fourth


served = served_by({POOL: mock_pool(block_size=16, total_blocks=65_536)})


@pytest.fixture(scope="module")
def other(served: Stack) -> str:
    """A second replica's address."""
    return replica_of(served, "other")


@contextmanager
def recording(s: Stack, out: Path, replicas: int = 2) -> Iterator["subprocess.Popen[str]"]:
    """Starts `xylem record` and yields its process once all replicas have reported."""
    command = [str(BIN / "xylem"), "record", "--out", str(out), "--minutes", "5"]
    with subprocess.Popen(command, cwd=ROOT, env=s.environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: written(s) >= 2 * replicas, "the replicas record")
            yield process
        finally:
            process.kill()


def written(s: Stack) -> int:
    """Entries in the recording's stream, with those that were trimmed."""
    raw = s.redis.get(f"{s.deployment}:recording")
    stream = raw and f"{s.deployment}:recorded:{decode_recording(raw).id}"
    return int(s.redis.xinfo_stream(stream)["entries-added"]) if stream and s.redis.exists(stream) else 0


def ended(process: "subprocess.Popen[str]") -> str:
    """The output of the process at its end, after a Ctrl-C."""
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    return stderr


def asked(url: str, prompt: str, **more: Any) -> dict[str, Any]:
    """The usage."""
    body = {"model": "mock", "prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True, **more}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


def prompt(s: Stack, group: int, turn: int) -> str:
    """Begins as its group's other prompts for SHARED tokens and some more, and goes on differently."""
    text = f"{group} {SECRET} " * SHARED
    count = len(httpx.post(f"{s.url}/tokenize", json={"model": "mock", "prompt": text}).json()["tokens"])
    return text[: len(text) * SHARED // count] + f" turn {turn} " * (30 + 40 * turn)


def replayed(s: Stack, trace: Path, *more: str) -> tuple[int, dict[str, Any]]:
    command = [str(BIN / "xylem"), "replay", str(trace), "--url", s.url, "--json", *more]
    result = subprocess.run(
        command, check=False, cwd=ROOT, env=s.environment(), capture_output=True, text=True, timeout=120
    )
    assert result.stdout, result.stderr
    results: dict[str, Any] = json.loads(result.stdout)
    return result.returncode, results


def shared_blocks(a: Request, b: Request) -> int:
    pairs = zip(a.hash_ids, b.hash_ids, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(a.hash_ids), len(b.hash_ids)))


@pytest.fixture(scope="module")
def recorded(served: Stack, other: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A trace of traffic over both replicas, and each request's usage."""
    s = served
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl.gz"
    with recording(s, path) as process:
        usages = [
            asked((s.url, other)[turn % 2], prompt(s, group, turn)) for turn in range(TURNS) for group in range(GROUPS)
        ]
        stderr = ended(process)
    assert f"{GROUPS * TURNS} requests of 2 API replicas" in stderr
    return path, usages


def test_a_recording_has_the_lengths_and_times_of_both_replicas_requests(
    recorded: tuple[Path, list[dict[str, Any]]],
) -> None:
    path, usages = recorded
    trace = read_trace(path)
    assert [(r.input_length, r.output_length) for r in trace] == [
        (usage["prompt_tokens"], usage["completion_tokens"]) for usage in usages
    ]
    times = [r.timestamp or 0.0 for r in trace]
    assert times == sorted(times)
    assert times[0] >= 0


def test_recorded_requests_share_the_blocks_that_their_prompts_share(
    recorded: tuple[Path, list[dict[str, Any]]],
) -> None:
    trace = read_trace(recorded[0])
    for i, a in enumerate(trace):
        for j, b in enumerate(trace[:i]):
            assert shared_blocks(a, b) == (SHARED // 512 if i % GROUPS == j % GROUPS else 0)


def test_a_recording_has_no_text_and_no_hashes(recorded: tuple[Path, list[dict[str, Any]]]) -> None:
    for request in read_trace(recorded[0]):
        assert max(request.hash_ids) < 200  # numbers in the order of their coming
        assert request.session_id is None
    fields = {"input_length", "output_length", "timestamp", "hash_ids"}
    lines = gzip.decompress(recorded[0].read_bytes())
    assert all(set(json.loads(line)) == fields for line in lines.splitlines())
    assert SECRET.encode() not in lines


def test_a_replay_sends_the_same_requests_with_the_same_lengths_and_shared_prefixes(
    served: Stack, recorded: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    path, usages = recorded
    code, results = replayed(served, path, "--plot", str(tmp_path / "replay.svg"))
    assert code == 0, results
    assert results["requests"] == {"planned": len(usages), "sent": len(usages), "answered": len(usages), "failed": 0}
    prompts, answers = results["prompt_tokens"], results["answer_tokens"]
    assert prompts["wanted"] == sum(usage["prompt_tokens"] for usage in usages)
    assert prompts["measured"] == pytest.approx(prompts["wanted"], rel=0.04)
    assert answers["measured"] == answers["wanted"] == len(usages) * ANSWER
    cached_share = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages) / prompts["wanted"]
    assert cached_share > 0.4
    assert results["cached_share"] == pytest.approx(cached_share, abs=0.08)
    assert "<svg" in (tmp_path / "replay.svg").read_text()


def test_a_replay_of_other_words_finds_nothing_of_the_one_before_and_of_the_same_everything(
    served: Stack, recorded: tuple[Path, list[dict[str, Any]]]
) -> None:
    path, _ = recorded
    first, again, other = (replayed(served, path, "--seed", seed)[1] for seed in ("one", "one", "two"))
    assert again["cached_share"] > 0.95
    assert other["cached_share"] == pytest.approx(first["cached_share"], abs=0.08)


def test_an_answer_that_runs_when_the_recording_ends_is_awaited(served: Stack, tmp_path: Path) -> None:
    s = served
    body = {"model": "mock", "prompt": "long", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with recording(s, tmp_path / "trace.jsonl") as process:
        with httpx.stream("POST", f"{s.url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            assert sum(1 for _ in lines) > 0
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert [r.output_length for r in read_trace(tmp_path / "trace.jsonl")] == [400]


def test_two_recordings_at_once_are_refused_and_a_refused_request_is_only_counted(
    served: Stack, tmp_path: Path
) -> None:
    s = served
    with recording(s, tmp_path / "trace.jsonl") as process:
        command = [str(BIN / "xylem"), "record", "--out", str(tmp_path / "second.jsonl"), "--minutes", "1"]
        second = subprocess.run(
            command, check=False, cwd=ROOT, env=s.environment(), capture_output=True, text=True, timeout=60
        )
        assert second.returncode == 1
        assert "another `xylem record` is at work" in second.stderr
        asked(s.url, "hello")
        short = {"model": "mock", "prompt": "hello", "max_tokens": 4, "timeout": 0.000_001}
        assert httpx.post(f"{s.url}/v1/completions", json=short).status_code >= 400
        assert "not in it: 1 that were refused" in ended(process)
    assert len(read_trace(tmp_path / "trace.jsonl")) == 1


def test_a_replica_that_dies_does_not_end_the_recording(served: Stack, tmp_path: Path) -> None:
    s = served
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    third = s.api("third", port)
    s.wait_ready(url=url)
    with recording(s, tmp_path / "trace.jsonl", replicas=3) as process:
        asked(url, "before it dies")
        before = written(s)
        wait_until(lambda: written(s) >= before + 9, "it has reported the request")
        stop(third, signal.SIGKILL)
        asked(s.url, "after that")
        stderr = ended(process)
    assert "2 requests of 3 API replicas" in stderr
    assert len(read_trace(tmp_path / "trace.jsonl")) == 2


def test_a_replay_that_is_interrupted_reports_and_leaves_nothing_running(served: Stack, tmp_path: Path) -> None:
    s = served
    trace = tmp_path / "trace.jsonl"
    write_trace(trace, [Request(100, 8000, 0, [0]), Request(100, 5, 3_600_000, [1])])

    def counted(name: str) -> float:
        lines = httpx.get(f"{s.url}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = counted("xylem_requests_total")
    command = [str(BIN / "xylem"), "replay", str(trace), "--url", s.url, "--json"]
    with subprocess.Popen(command, cwd=ROOT, env=s.environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: counted("xylem_requests_total") == before + 2, "the tokenizer is measured")
            wait_until(lambda: counted("xylem_requests_in_flight") == 1, "the first request runs")
            process.send_signal(signal.SIGINT)
            stdout, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    results = json.loads(stdout)
    assert results["stopped"] == "interrupted"
    assert results["requests"] == {"planned": 2, "sent": 1, "answered": 0, "failed": 1}
    wait_until(lambda: counted("xylem_requests_in_flight") == 0, "its request is given up")


def test_a_bad_line_of_a_trace_is_named_before_anything_is_sent(served: Stack, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 9, "output_length": 1}\n{"timestamp": 0}\n')
    command = [str(BIN / "xylem"), "replay", str(trace), "--url", served.url]
    result = subprocess.run(command, check=False, cwd=ROOT, env=served.environment(), capture_output=True, text=True)
    assert result.returncode == 2
    assert "trace.jsonl, line 2: " in result.stderr
