"""vLLM's arguments, and the sockets of its processes. No engine is loaded here."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.engines import create_engine
from app.errors import SettingsError
from tests.contract.conftest import make_pool
from tests.stack import ROOT

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


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
