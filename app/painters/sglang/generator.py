"""SGLang's DiffGenerator: its processes, and one call of it for one picture."""

import logging
import os
import shutil
import tempfile
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from typing import Any

from sglang.multimodal_gen.runtime.entrypoints.diffusion_generator import DiffGenerator
from sglang.multimodal_gen.runtime.scheduler_client import sync_scheduler_client
from sglang.multimodal_gen.runtime.server_args import ServerArgs

from app.engines.log_level import root_logger_kept
from app.errors import EngineDead, EngineFailed, RequestError, SettingsError
from app.painters.sglang.args import SglangPainterArgs
from app.painters.sglang.hooks import FOLDER
from app.painters.sglang.steps import OnStep, Steps

# What it says of a failure is that there was one; its workers say which.
logging.getLogger(DiffGenerator.__module__).setLevel(logging.CRITICAL)

_LOOK_S = 0.2  # for the end of the thread that sees deaths


class Generator:
    """Methods block; one call of `paint` at a time."""

    def __init__(self, args: SglangPainterArgs, on_step: OnStep) -> None:
        """Loads it. `on_step` is called in a thread. Raises: SettingsError, EngineFailed."""
        self._folder = Path(tempfile.mkdtemp(prefix="xylem-sglang-"))
        os.environ[FOLDER] = str(self._folder)  # for the processes that it starts
        steps: Steps | None = None
        try:
            with root_logger_kept():
                try:
                    server_args = ServerArgs.from_kwargs(**args.fields)
                except (ValueError, TypeError, AssertionError) as exc:
                    raise SettingsError(f"SGLang refuses these engine arguments: {exc}") from exc
                steps = Steps(server_args.progress_endpoint, on_step)
                steps.start()
                self._made = _Telling.from_server_args(server_args)
        except BaseException as exc:
            shutil.rmtree(self._folder, ignore_errors=True)
            if steps is not None:
                steps.close()
            if isinstance(exc, SettingsError) or not isinstance(exc, Exception):
                raise
            raise EngineFailed(f"SGLang can't load it: {exc}") from exc
        self._steps = steps
        self._closing = self._died = False
        self._watching = Thread(target=self._see_deaths, name="sglang-deaths", daemon=True)
        self._watching.start()

    def paint(self, name: str, params: dict[str, Any]) -> Any:
        """Frames × height × width × 3, from 0 to 255. `name`: unique.

        Raises: RequestError, EngineFailed, EngineDead.
        """
        try:
            arguments = {**params, "request_id": name, "output_file_name": name}
            result = None if self._died else self._made.generate(sampling_params_kwargs=arguments)
        except (ValueError, TypeError, NotImplementedError) as exc:  # before it is sent
            raise RequestError(f"SGLang refuses it: {exc}") from exc
        finally:
            (self._folder / name).unlink(missing_ok=True)
        if self._died:
            raise EngineDead("A process of SGLang's has ended.")
        if result is None:
            raise EngineFailed("SGLang could not paint it; its log says why.")
        return result.frames

    def stop(self, name: str) -> None:
        """Ends what is painted under that name with its present step."""
        with suppress(OSError):  # closed
            (self._folder / name).touch()

    def close(self) -> None:
        self._closing = True
        self._made.shutdown()
        self._watching.join()
        self._steps.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _see_deaths(self) -> None:
        """Closes the socket when a process dies: else whoever waits for an answer of that process waits for ever."""
        sentinels = [process.sentinel for process in self._made.local_scheduler_process]
        while not self._closing:
            if wait(sentinels, _LOOK_S) and not self._closing:
                self._died = True
                sync_scheduler_client.close()
                return


class _Telling(DiffGenerator):  # type: ignore[misc]
    """Asks SGLang's workers to tell of each step."""

    def _send_to_scheduler_and_wait_for_response(self, batch: Any) -> Any:
        for request in batch:
            request.report_progress = True
        return super()._send_to_scheduler_and_wait_for_response(batch)
