"""A PostgreSQL server of its own, for tests."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.stack import connects, free_port, stop, wait_until


def _program(name: str) -> str:
    """Debian has them in a folder of the version, which isn't on the PATH."""
    debians = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    path = shutil.which(name) or (str(debians[-1]) if debians else None)
    assert path, "PostgreSQL is not installed: `make test` installs it where it may, else use your package manager"
    return path


@contextmanager
def postgres(directory: Path) -> Iterator[str]:
    """Yields the URL of its database. It refuses to run as root, and becomes `nobody` then."""
    port, data = free_port(), directory / "postgres"
    data.mkdir()
    as_root = os.geteuid() == 0
    user = {"user": "nobody"} if as_root else {}
    if as_root:
        shutil.chown(data, "nobody")
        for folder in directory.resolve().parents[:-1]:  # pytest's are closed to others
            if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
                folder.chmod(0o755)
        directory.chmod(0o755)
    init = [_program("initdb"), "-D", str(data), "--auth=trust", "--username=xylem", "--encoding=UTF8", "--no-sync"]
    subprocess.run(init, check=True, stdout=subprocess.DEVNULL, cwd=data, **user)  # type: ignore[call-overload]
    argv = [_program("postgres"), "-D", str(data), "-p", str(port), "-k", "", "-h", "127.0.0.1", "-F"]
    with (directory / "postgres.log").open("wb") as log:
        server = subprocess.Popen(argv, stdout=log, stderr=log, cwd=data, **user)  # type: ignore[call-overload]
        try:
            wait_until(lambda: connects(port), "PostgreSQL listens")
            yield f"postgresql://xylem@127.0.0.1:{port}/postgres"
        finally:
            stop(server)
