"""The planner's scaler for hosts with systemd: over real SSH, to a stand-in for systemctl."""

import getpass
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from app.errors import ScalingFailed
from app.ids import PoolId, WorkerId
from app.messages.lease import Worker
from app.planner.desired import Desired
from tests.stack import PYTHON, connects, free_port, stop, wait_until
from workers.planner.scalers.ssh import SshScaler, Unit, changes

POOL = PoolId("decode-pool-a")
SSHD = Path("/usr/sbin/sshd")
SYSTEMCTL = f"""#!{PYTHON}
import os, signal, subprocess, sys
from pathlib import Path
units = Path(__file__).parent / "units"
verb, *words = sys.argv[1:]
names = [word for word in words if not word.startswith("--")]
for number, name in enumerate(names):
    file = units / name
    if verb == "start":
        started = subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
        file.write_text(str(started.pid))
    elif verb == "stop":
        os.kill(int(file.read_text()), signal.SIGTERM)
        file.unlink()
    else:
        state, pid = ("active", file.read_text()) if file.exists() else ("inactive", "0")
        print(("\\n" if number else "") + f"Id={{name}}\\nActiveState={{state}}\\nMainPID={{pid}}")
"""


class Host:
    """An sshd of its own, with what stands in for systemctl and uname first on the PATH."""

    def __init__(self, home: Path, name: str) -> None:
        self.name, self.port, self.home = name, free_port(), home / name
        (self.home / "units").mkdir(parents=True)
        for program, text in (("systemctl", SYSTEMCTL), ("uname", f"#!/bin/sh\necho {name}\n")):
            (self.home / program).write_text(text)
            (self.home / program).chmod(0o755)
        self._config = self.home / "sshd_config"
        self._config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {home}/key\nAuthorizedKeysFile {home}/key.pub\n"
            f"PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
            f"SetEnv PATH={self.home}:/usr/bin:/bin\n"
        )

    @contextmanager
    def up(self) -> Iterator[None]:
        with (self.home / "log").open("ab") as log:
            server = subprocess.Popen([SSHD, "-D", "-e", "-f", self._config], stdout=log, stderr=log)
        try:
            wait_until(lambda: connects(self.port), "sshd listens")
            yield
        finally:
            stop(server)

    def workers(self) -> list[Worker]:
        """The workers that run, as their leases have them."""
        pids = [(file.name, int(file.read_text())) for file in sorted((self.home / "units").iterdir())]
        names = [(f"{self.name}-{name.partition('.')[0][-1]}", pid) for name, pid in pids]
        return [Worker(WorkerId(name), POOL, "both", self.name, pid, 16, 100, 8, 4096) for name, pid in names]

    def kill_all(self) -> None:
        for worker in self.workers():
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    assert SSHD.exists(), "no sshd: `make test` installs it where it may, else use your package manager"
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd, as root, wants to be
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    one, two = Host(tmp_path, "gpu1"), Host(tmp_path, "gpu2")
    host_key_options = f"UserKnownHostsFile {tmp_path}/known\nStrictHostKeyChecking accept-new\n"
    login = f"IdentityFile {tmp_path}/key\nIdentitiesOnly yes\nUser {getpass.getuser()}\n{host_key_options}"
    (tmp_path / "ssh_config").write_text(
        "".join(f"Host {host.name}\nHostName 127.0.0.1\nPort {host.port}\n{login}" for host in (one, two))
    )
    yield one, two
    for host in (one, two):
        host.kill_all()


def desired(workers: int, *drain: str) -> Desired:
    return Desired(workers, "traffic", 1, 0.0, act=True, drain=[WorkerId(name) for name in drain])


async def test_workers_are_spread_over_the_hosts_and_those_end_that_the_plan_names(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    one, two = hosts
    scaler = SshScaler({POOL: {"gpu1": 2, "gpu2": 2}}, tmp_path / "ssh_config")

    def there() -> list[str]:
        return [worker.id for host in hosts for worker in host.workers()]

    with one.up(), two.up():
        await scaler.scale(POOL, desired(3), [])
        assert there() == ["gpu1-1", "gpu1-2", "gpu2-1"]
        leases = [*one.workers(), *two.workers()]
        await scaler.scale(POOL, desired(3), leases)
        assert [*one.workers(), *two.workers()] == leases
        await scaler.scale(POOL, desired(1, "gpu2-1", "gpu1-1"), leases)
        assert there() == ["gpu1-2"]
        pids = [worker.pid for worker in leases if worker.id != "gpu1-2"]
        wait_until(lambda: not any(map(_runs, pids)), "they have ended")
        await scaler.scale(POOL, desired(9), one.workers())
        assert there() == ["gpu1-1", "gpu1-2", "gpu2-1", "gpu2-2"]


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_a_host_that_does_not_answer_is_told_and_the_others_are_scaled(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    """Its workers count as long as they have leases."""
    one, _ = hosts
    scaler = SshScaler({POOL: {"gpu1": 2, "gpu2": 2}}, tmp_path / "ssh_config")
    away = Worker(WorkerId("gpu2-1"), POOL, "both", "gpu2", 1, 16, 100, 8, 4096)
    with one.up():
        with pytest.raises(ScalingFailed, match=r"gpu2: uname ended with 255: .*Connection refused"):
            await scaler.scale(POOL, desired(2), [away])
        assert [worker.id for worker in one.workers()] == ["gpu1-1"]


async def test_what_systemctl_refuses_is_told(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    one, _ = hosts
    refuses = '#!/bin/sh\ncase $1 in start) echo "Access denied" >&2; exit 4;; esac\n'
    (one.home / "systemctl").write_text(f"{refuses}echo Id=$3; echo ActiveState=inactive; echo MainPID=0\n")
    scaler = SshScaler({POOL: {"gpu1": 1}}, tmp_path / "ssh_config")
    with one.up(), pytest.raises(ScalingFailed, match="gpu1: systemctl ended with 4: Access denied"):
        await scaler.scale(POOL, desired(1), [])


def test_a_worker_that_loads_its_model_is_stopped_before_one_that_the_plan_names() -> None:
    units = [Unit("gpu1", "gpu1", f"w{i}", "active", i) for i in (1, 2)] + [Unit("gpu1", "gpu1", "w3", "activating", 3)]
    leases = [Worker(WorkerId(f"w{i}"), POOL, "both", "gpu1", i, 16, 100, 8, 4096) for i in (1, 2)]
    assert changes(units, desired(2, "w1"), leases) == ([], [units[2]])
    assert changes(units, desired(1, "w1"), leases) == ([], [units[2], units[0]])


def test_no_worker_is_stopped_that_the_plan_does_not_name() -> None:
    """Its cache may be worth more than the others'."""
    units = [Unit("gpu1", "gpu1", f"w{i}", "active", i) for i in (1, 2)]
    leases = [Worker(WorkerId(f"w{i}"), POOL, "both", "gpu1", i, 16, 100, 8, 4096) for i in (1, 2)]
    assert changes(units, desired(1), leases) == ([], [])


def test_one_that_still_ends_is_not_counted_and_leaves_no_place_yet() -> None:
    units = [Unit("gpu1", "gpu1", "w1", "deactivating", 1), Unit("gpu1", "gpu1", "w2", "failed", 0)]
    ending = Worker(WorkerId("w1"), POOL, "both", "gpu1", 1, 16, 100, 8, 4096)
    assert changes(units, desired(2), [ending]) == ([units[1]], [])
    starting = Unit("gpu1", "gpu1", "w2", "activating", 2)
    assert changes([units[0], starting], desired(1, "w1"), [ending]) == ([], [])
