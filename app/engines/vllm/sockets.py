"""Where vLLM's processes meet: a folder of this process's own, since a killed vLLM leaves its sockets behind."""

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

_PREFIX = "xylem-vllm-"


@cache
def socket_folder() -> str:
    """Made at the first call, and gone with this process. What killed processes have left is removed first.

    A lock tells which folders are in use: another container that shares the folder has other process numbers.
    """
    base = Path(os.environ.get("VLLM_RPC_BASE_PATH") or tempfile.gettempdir())
    for folder in base.glob(f"{_PREFIX}*"):
        _remove_if_left(folder)
    while True:
        mine = tempfile.mkdtemp(prefix=_PREFIX, dir=base)
        _lock(mine)  # until this process ends, and those that it forked
        if Path(mine).exists():  # nobody took it for left, before it was locked
            atexit.register(shutil.rmtree, mine, ignore_errors=True)
            return mine


def _lock(folder: str) -> int | None:
    """The descriptor that holds it; None if the folder is in use, gone, or another user's."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
        else:
            return fd
    return None


def _remove_if_left(folder: Path) -> None:
    fd = _lock(str(folder))
    if fd is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(fd)
