"""The folder of the sockets between vLLM's processes: one for each worker, since a killed vLLM leaves its sockets."""

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
    """Creates the folder at the first call; it is removed with this process. Removes folders of killed processes first.

    A lock shows that a folder is in use: process ids don't, since another container may share the folder.
    """
    base = Path(os.environ.get("VLLM_RPC_BASE_PATH") or tempfile.gettempdir())
    for folder in base.glob(f"{_PREFIX}*"):
        _remove_if_left(folder)
    while True:
        mine = tempfile.mkdtemp(prefix=_PREFIX, dir=base)
        _lock(mine)  # until this process and its forks end
        if Path(mine).exists():  # no other process removed it before it was locked
            atexit.register(shutil.rmtree, mine, ignore_errors=True)
            return mine


def _lock(folder: str) -> int | None:
    """The descriptor that holds the lock; None if the folder is in use, gone, or another user's."""
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
