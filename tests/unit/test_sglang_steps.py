"""Between SGLang's diffusion workers and their painter, without SGLang: steps come one way, and stops go the other."""

import logging
import sys
from pathlib import Path
from queue import Queue
from types import SimpleNamespace

import pytest
import zmq

from app.painters.sglang import hooks
from app.painters.sglang.steps import Steps


def test_a_step_ends_the_request_that_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other request ends."""
    monkeypatch.setenv(hooks.FOLDER, str(tmp_path))
    (tmp_path / "painting-1").touch()
    hooks._end_of_step(None, SimpleNamespace(_request_ids=["painting-0"]))
    with pytest.raises(hooks.Stopped):
        hooks._end_of_step(None, SimpleNamespace(_request_ids=["painting-1"]))
    monkeypatch.delenv(hooks.FOLDER)
    hooks._end_of_step(None, SimpleNamespace(_request_ids=["painting-1"]))


@pytest.mark.parametrize(("raised", "logged"), [(hooks.Stopped(), False), (ValueError(), True)])
def test_a_stop_is_no_error_in_the_log(raised: Exception, logged: bool) -> None:
    try:
        raise raised
    except Exception:  # noqa: BLE001 (as SGLang does)
        record = logging.LogRecord("sglang", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    assert hooks._is_no_stop(record) == logged


def test_steps_are_taken_of_workers_that_come_later(tmp_path: Path) -> None:
    step_queue: Queue[tuple[str, int, int]] = Queue()
    endpoint = f"ipc://{tmp_path}/steps"
    steps = Steps(endpoint, lambda *step: step_queue.put(step))
    steps.start()
    try:
        with zmq.Context() as context, context.socket(zmq.PUSH) as worker:
            worker.connect(endpoint)
            for step in (["a", 0, 0], ["a", 1, 4], ["a", 2.0, 4]):  # the first one says that it begins
                worker.send_json(step)
            assert [step_queue.get(timeout=10) for _ in range(2)] == [("a", 1, 4), ("a", 2, 4)]
    finally:
        steps.close()
    assert step_queue.empty()
