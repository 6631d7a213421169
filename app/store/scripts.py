"""The Lua sources, read once. Their keys are those of `app/keys.py`."""

from pathlib import Path

_FOLDER = Path(__file__).parent

SNAPSHOT = (_FOLDER / "snapshot.lua").read_text()
PLACE = (_FOLDER / "place.lua").read_text()
RELEASE = (_FOLDER / "release.lua").read_text()
