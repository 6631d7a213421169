import subprocess
import sys

from tests.stack import ROOT, free_port

_TAKE = "from tests.stack import free_port; print(*[free_port() for _ in range(2000)], flush=True); input()"


def test_no_two_test_processes_get_the_same_port() -> None:
    """No server needs to listen there yet."""
    others = [
        subprocess.Popen(
            [sys.executable, "-c", _TAKE], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    try:
        ports = [free_port() for _ in range(500)]
        for other in others:
            assert other.stdout is not None
            ports += map(int, other.stdout.readline().split())
        assert len(ports) == len(set(ports)) == 6500
    finally:
        for other in others:
            other.communicate("\n")
