"""The Lua sources, read once. Their keys are those of `app/keys/`.

They are sent with EVAL and their source: Redis compiles a source once, and no restart or failover can make it answer
"no such script".
"""

from pathlib import Path

_FOLDER = Path(__file__).parent / "lua"


def _source(name: str) -> str:
    """A script's source without comments and indentation, which would be sent and hashed with every call."""
    lines = [line.strip() for line in (_FOLDER / f"{name}.lua").read_text().splitlines()]
    return "\n".join(line for line in lines if not line.startswith("--"))


LEAD = _source("lead")
PAGE = _source("page")

_LOAD = _source("requests/load") + "\n"  # prepended to the scripts that count what is reserved
_BEGINNINGS = _source("requests/beginnings") + "\n"  # prepended to those that know of waiting prompts
_WRITE_RUNS = _BEGINNINGS + _source("requests/write_runs") + "\n"
_STOP = _WRITE_RUNS + _source("requests/stop") + "\n"
COMING = _BEGINNINGS + _source("requests/coming")
ENCODED = _source("requests/encoded")
HAND_OVER = _LOAD + _STOP + _source("requests/hand_over") + "\n" + _source("requests/release")
FORGET_LOADS = _LOAD + _source("requests/forget_loads")
FORGET_PROMPTS = _STOP + _source("requests/forget_prompts")
_LOOK_UPS = _source("requests/look_ups") + "\n"
MATCH = _LOOK_UPS + _source("requests/match")
MATCH_POINTS = _LOOK_UPS + _source("requests/match_points")
MATCH_TIERS = _source("requests/match_tiers")
PLACE = _LOAD + _WRITE_RUNS + _source("requests/place")
RECONCILE = _LOAD + _STOP + _source("requests/reconcile")
RELEASE = _LOAD + _STOP + _source("requests/release")
SERVE = _source("requests/serve")
TRIM_STREAM = _source("requests/trim_stream")

_KEPT_BYTES = _source("resumable/kept_bytes") + "\n"  # prepended to the scripts that count kept bytes
_LOCKED = _source("resumable/locked") + "\n"  # prepended to those that ask whether a response is being made
ADOPT = _source("resumable/adopt")
DISOWN = _source("resumable/disown")
FORGET_OWNER = _source("resumable/forget_owner")
APPEND = _KEPT_BYTES + _source("resumable/append")
CANCEL = _KEPT_BYTES + _source("resumable/cancel")
DUE = _source("resumable/due")
CONVERSE = _LOCKED + _KEPT_BYTES + _source("resumable/converse")
END_CONVERSATION = _KEPT_BYTES + _source("resumable/end_conversation")
FORGET = _KEPT_BYTES + _source("resumable/forget")
OWN = _LOCKED + _KEPT_BYTES + _source("resumable/own")
READ_ITEMS = _source("resumable/read_items")
SET_CHAT = _KEPT_BYTES + _source("resumable/set_chat")
SET_CONVERSATION = _KEPT_BYTES + _source("resumable/set_conversation")
UNSAY = _KEPT_BYTES + _source("resumable/unsay")

ADD_RESULT = _source("batch/add_result")
CLAIM_PART = _source("batch/claim_part")
COMPLETE = _source("batch/complete")
COUNT_LINES = _source("batch/count_lines")
CREATE = _source("batch/create")
HAND_OUT_PARTS = _source("batch/hand_out_parts")
LOCK = _source("batch/lock")
RETURN_PART = _source("batch/return_part")
SET_PARTS = _source("batch/set_parts")
SET_STATUS = _source("batch/set_status")
UNLOCK = _source("batch/unlock")

ADD_FILE = _source("files/add_file")
REMOVE_FILE = _source("files/remove_file")

_ACCOUNT = _source("ledger/account") + "\n"
ADMIT = _ACCOUNT + _source("ledger/admit")
SETTLE = _ACCOUNT + _source("ledger/settle")

_HELD = _source("media/held") + "\n"  # prepended to the scripts that count samples
HOLD_MEDIA = _HELD + _source("media/hold")
RELEASE_MEDIA = _HELD + _source("media/release")
RENEW_MEDIA = _HELD + _source("media/renew")

FORM_GROUP = _source("groups/form")

MARK_INDEX = _source("index/mark")
SWEEP_INDEX = _source("index/sweep")
TELL = _source("index/tell")
WRITE_INDEX = _source("index/write")

CHANGE_TENANTS = _source("tenants/change")
RECOUNT = _source("tenants/recount")

NOTE_VERSION = _source("versions/note")
