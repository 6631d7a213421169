"""Host memory of engines that were killed: vLLM's regions are files, which outlive the processes that mapped them."""

import os
from contextlib import suppress
from pathlib import Path

_FOLDER, _PATTERN = Path("/dev/shm"), "vllm_offload_*.mmap"  # noqa: S108 (vLLM's own choice)


def remove_dead_regions() -> list[str]:
    """Regions of this user that no process has mapped, or open. A new one is open from its beginning on."""
    paths = {str(path) for path in _FOLDER.glob(_PATTERN) if path.stat().st_uid == os.getuid()}
    for process in Path("/proc").glob("[0-9]*") if paths else ():
        with suppress(OSError):  # it has ended, or is another user's
            paths -= {line.split(maxsplit=5)[-1] for line in (process / "maps").read_text().splitlines()}
        with suppress(OSError):
            paths -= {str(file.readlink()) for file in (process / "fd").iterdir()}
    for path in paths:
        Path(path).unlink(missing_ok=True)
    return sorted(paths)
