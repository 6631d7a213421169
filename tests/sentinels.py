"""A Redis master, its replica and the Sentinels that watch them, on free ports, for tests."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from tests.certificates import certify, server_options
from tests.stack import free_port, stop_all, wait_until

MASTER, PASSWORD, SENTINEL_PASSWORD = "the-master", "of redis", "of/sentinels"
_URL = "{}://:of%20redis@{}/the-master/1?sentinel_password=of%2Fsentinels{}"


@dataclass
class Watched:
    """`kill` ends a server as a power cut does; the others go on."""

    directory: Path
    ca: Path | None = None  # with it they all speak TLS only
    servers: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    sentinels: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def url(self) -> str:
        nodes = ",".join(f"127.0.0.1:{port}" for port in self.sentinels)
        return (
            _URL.format("sentinels", nodes, f"&ssl_ca_certs={self.ca}")
            if self.ca
            else _URL.format("sentinel", nodes, "")
        )

    def client(self, port: int, password: str = PASSWORD) -> "Redis":
        """A client of a server, or with their password of a Sentinel."""
        return Redis(port=port, password=password, ssl=self.ca is not None, ssl_ca_certs=self.ca and str(self.ca))

    def _listening(self, port: int) -> dict[str, str]:
        if self.ca is None:
            return {"port": str(port)}
        return server_options(self.ca.parent, port) | {"tls-replication": "yes"}

    def server(self, *more: str) -> int:
        port = free_port()
        directory = self.directory / str(port)
        directory.mkdir()
        options = {
            **self._listening(port), "save": "", "repl-diskless-sync-delay": "0", "dir": str(directory),
            "requirepass": PASSWORD, "masterauth": PASSWORD,
        }  # fmt: skip
        args = [part for name, value in options.items() for part in (f"--{name}", value)]
        self.servers[port] = self._start("redis-server", *args, *more)
        wait_until(lambda: self.answers(port), "redis-server answers")
        return port

    def sentinel(self, master: int, quorum: int) -> None:
        port = free_port()
        file = self.directory / f"sentinel-{port}.conf"
        file.write_text(
            "".join(f"{name} {value}\n" for name, value in self._listening(port).items()) + "bind 127.0.0.1\n"
            f"requirepass {SENTINEL_PASSWORD}\nsentinel sentinel-pass {SENTINEL_PASSWORD}\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {master} {quorum}\n"
            f'sentinel auth-pass {MASTER} "{PASSWORD}"\n'
            f"sentinel down-after-milliseconds {MASTER} 1000\nsentinel failover-timeout {MASTER} 4000\n"
        )
        self.sentinels[port] = self._start("redis-server", str(file), "--sentinel")

    def ask(self, *command: str | int) -> object:
        """The first Sentinel."""
        with self.client(next(iter(self.sentinels)), SENTINEL_PASSWORD) as sentinel:
            return sentinel.execute_command(*command)

    @property
    def master(self) -> int:
        """The port of the present one, as the first Sentinel knows it."""
        _host, port = self.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)  # type: ignore[misc]
        return int(port)

    def kill(self, port: int) -> None:
        proc = (self.servers | self.sentinels)[port]
        proc.kill()
        proc.wait()

    def settled(self) -> bool:
        """Whether a failover would succeed: the replica has everything, and every Sentinel knows of it."""
        replicas = self.ask("SENTINEL", "REPLICAS", MASTER)
        other_sentinels = self.ask("SENTINEL", "SENTINELS", MASTER)
        assert isinstance(replicas, list)
        assert isinstance(other_sentinels, list)
        with self.client(self.master) as master:
            replica = master.info("replication").get("slave0", {})
        return bool(replicas) and len(other_sentinels) == len(self.sentinels) - 1 and replica.get("state") == "online"

    def answers(self, port: int) -> bool:
        try:
            with self.client(port) as server:
                return bool(server.ping())
        except (RedisError, OSError):
            return False

    def _start(self, *command: str) -> "subprocess.Popen[bytes]":
        binary = shutil.which(command[0])
        assert binary, "redis-server is not installed"
        with (self.directory / "redis.log").open("ab") as log:
            return subprocess.Popen([binary, *command[1:]], stdout=log, stderr=log)


@contextmanager
def watched(directory: Path, sentinels: int = 3, *, tls: bool = False) -> Iterator[Watched]:
    w = Watched(directory, certify(directory) if tls else None)
    try:
        master = w.server("--maxmemory-policy", "noeviction")
        w.server("--replicaof", "127.0.0.1", str(master))
        for _ in range(sentinels):
            w.sentinel(master, quorum=sentinels // 2 + 1)
        wait_until(w.settled, "the Sentinels know each other and the replica", 60)
        yield w
    finally:
        stop_all([*w.sentinels.values(), *w.servers.values()])
