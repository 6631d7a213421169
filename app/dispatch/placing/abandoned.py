"""Attempts that nobody awaits any more: they are stopped on their workers."""

from collections.abc import Sequence

from app.errors import StoreDown
from app.intervals import COMMANDS_TTL_S
from app.keys import Keys
from app.messages.commands import Cancel
from app.messages.job import Job
from app.messages.wire import encode
from app.store import Command, Wire
from app.telemetry import logger

log = logger(__name__)


class AbandonedAttempts:
    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire, self._keys = wire, keys
        self._jobs: list[Job] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Adds a job, which the next `stop_all` stops."""
        self._jobs.append(job)

    async def stop_all(self) -> None:
        """Stops the added jobs. If Redis is unreachable, the next call stops those that are left."""
        jobs = list(self._jobs)
        try:
            await self.stop(jobs)
        except StoreDown:
            return
        except Exception:  # not tried again: the jobs run to their ends
            log.exception("not_stopped", requests=len(jobs))
        del self._jobs[: len(jobs)]

    async def stop(self, jobs: Sequence[Job]) -> None:
        """Ends jobs on their workers. Raises: StoreDown."""
        commands: list[Command] = []
        for job in jobs:
            commands.append(("UNLINK", self._keys.request(job.run)))
            for stage in job.stages:
                key = self._keys.commands(stage.worker)
                commands += [("RPUSH", key, encode(Cancel(job.run))), ("EXPIRE", key, COMMANDS_TTL_S)]
        if commands:
            await self._wire.execute(commands)
