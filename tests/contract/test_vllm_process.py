"""vLLM as a Celery worker runs it: on a loop of a thread, with processes of its own that must not outlive it."""

import asyncio
import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from app.engines import create_engine
from app.errors import EngineFailed, SettingsError
from app.tokenizer import load_tokenizer
from tests.contract.conftest import make_pool
from tests.contract.subject import Subject
from tests.stack import ROOT

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


def _processes_but(before: set[psutil.Process]) -> set[psutil.Process]:
    """Multiprocessing's resource tracker stays with the parent, so it doesn't count."""
    new = set(psutil.Process().children(recursive=True)) - before
    return {child for child in new if "resource_tracker" not in " ".join(child.cmdline())}


async def _serve_idle_and_die() -> None:
    before = set(psutil.Process().children(recursive=True))
    from app.engines.vllm.sockets import socket_folder  # with vLLM, whose warnings are ignored in tests only

    pool = make_pool("vllm")
    engine = create_engine(pool)
    subject = Subject(engine, await engine.start(), load_tokenizer(pool.model_dir))
    try:
        answer = await subject.answer(subject.chat("What is the capital of France?"), max_tokens=16)
        assert "Paris" in answer.text
        processes = _processes_but(before)
        assert processes
        assert os.listdir(socket_folder())  # noqa: PTH208 (a folder of two)

        await asyncio.sleep(1.5)  # vLLM's worker spins for a second before it sleeps
        spent = sum(sum(process.cpu_times()[:2]) for process in processes)
        await asyncio.sleep(2)
        assert sum(sum(process.cpu_times()[:2]) for process in processes) - spent < 0.2

        stream = subject.stream("Once upon a time", max_tokens=400, ignore_eos=True)
        await anext(stream)
        next(process for process in processes if "EngineCore" in process.name()).kill()
        with pytest.raises(EngineFailed):
            async for _ in stream:
                pass
        with pytest.raises(EngineFailed):
            await subject.answer("Once upon a time")
    finally:
        await engine.close()
    assert not _processes_but(before)


@pytest.mark.timeout(300)
def test_it_serves_from_a_thread_sleeps_when_idle_and_fails_loudly() -> None:
    """No signal handler is needed, no core is burnt, a dead engine process is an error, and close leaves nothing."""
    with ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(asyncio.run, _serve_idle_and_die()).result()
    gc.collect()  # what vLLM leaves to the collector is collected while this module's warning filters hold


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"max_num_sequences": 3}, "args.max_num_sequences=3"),
        ({"max_num_seqs": 3}, "the pool's own settings"),
        ({"env": {"A": 1}}, "args.env"),
        ({"kv_events_config": {"port": 1}}, "args.kv_events_config"),
    ],
)
def test_an_unknown_argument_is_named(args: dict[str, object], message: str) -> None:
    """A typing error stops the worker before it loads anything."""
    with pytest.raises(SettingsError, match=message):
        create_engine(make_pool("vllm", args=args))


async def test_a_bad_value_is_a_settings_error() -> None:
    """What vLLM's own configuration refuses is said in its words."""
    with pytest.raises(SettingsError, match="dtype"):
        await create_engine(make_pool("vllm", args={"dtype": "int3"})).start()


HOLD = """
import runpy
print(runpy.run_path("app/engines/vllm/sockets.py")["socket_folder"](), flush=True)  # without importing vLLM
input()
"""


def test_sockets_of_a_killed_worker_are_gone_after_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a living one stay, and its folder goes with it when it ends by itself."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("VLLM_RPC_BASE_PATH", raising=False)
    with ExitStack() as stack:

        def started() -> tuple["subprocess.Popen[str]", Path]:
            pipe = subprocess.PIPE
            argv = [sys.executable, "-W", "ignore", "-c", HOLD]
            process = stack.enter_context(subprocess.Popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            folder = Path(process.stdout.readline().strip())
            (folder / "socket").touch()
            return process, folder

        killed, left = started()
        killed.kill()
        killed.wait()
        assert left.exists()
        ended, kept = started()
        assert {left.exists(), kept.parent} == {False, tmp_path}
        _, last = started()
        assert kept.exists()
        ended.communicate("\n", timeout=20)
        assert list(tmp_path.glob("xylem-vllm-*")) == [last]
