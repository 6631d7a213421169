"""The Lua sources, read once. Their keys are those of `app/keys.py`.

They are sent with EVAL, source and all: Redis compiles a source once, and there is no "no such script" after a
restart or failover to recover from.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent

SNAPSHOT = (_FOLDER / "snapshot.lua").read_text()
PLACE = (_FOLDER / "place.lua").read_text()
RELEASE = (_FOLDER / "release.lua").read_text()
RECONCILE = (_FOLDER / "reconcile.lua").read_text()
