"""A Redis server of one's own beside a stack's: to be killed, suspended and started again, with nothing kept."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.stack import free_port, redis_command, stop, wait_until


class RedisServer:
    def __init__(self, directory: Path, *options: str, server: str | None = None, decode: bool = True) -> None:
        """`server`: another binary than redis-server. `decode`: the client's replies are texts."""
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        binary, *usual = redis_command(self.port, directory)
        self._command = [server or binary, *usual, *options]
        self.client = redis.Redis(port=self.port, decode_responses=decode)
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        wait_until(self._answers, "it answers")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False


@contextmanager
def another_redis(directory: Path) -> Iterator[RedisServer]:
    server = RedisServer(directory)
    try:
        yield server
    finally:
        server.client.close()
        stop(server.process)
