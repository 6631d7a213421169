"""The Lua sources, read once. Their keys are those of `app/keys.py`.

They are sent with EVAL, source and all: Redis compiles a source once, and there is no "no such script" after a
restart or failover to recover from.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent


def _source(name: str) -> str:
    """Without its comments, which would travel with every call."""
    lines = (_FOLDER / f"{name}.lua").read_text().splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("--"))


ADOPT = _source("adopt")
CANCEL, FORGET, KEEP, NOTE = (f"{_source('kept_bytes')}\n{_source(n)}" for n in ("cancel", "forget", "keep", "note"))
CHARGE, PLACE, RECONCILE, RELEASE, SNAPSHOT = map(_source, ("charge", "place", "reconcile", "release", "snapshot"))
CLAIM, CLOSE, FEED, LEAD, RESULT, TURN = map(_source, ("claim", "close", "feed", "lead", "result", "turn"))
SHELVE, UNSHELVE = map(_source, ("shelve", "unshelve"))
COMPLETE, CREATE, GRASP, LAYOUT, LET_GO = map(_source, ("complete", "create", "grasp", "layout", "letgo"))
TRIM = _source("trim")
