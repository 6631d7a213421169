"""The version of all that processes say to each other through Redis: messages, keys, scripts.

A process understands its own version and the neighbouring ones, so that processes can be upgraded one by one, one
version at a time. When a change needs a new version, and its duties: `ops/decisions/0027-wire-version.md`.
"""

import os
import signal

from app.errors import WireMismatch
from app.messages.wire import WIRE_VERSION
from app.running.loops import keep
from app.settings import Settings
from app.store.connection import Command
from app.store.scripts import NOTE_VERSION
from app.store.wire import Wire
from app.telemetry import logger

log = logger(__name__)
_EVERY_S = 10.0
_LONGEST_S = 86_400.0  # the longest `timeout` of a request


def note(settings: Settings) -> Command:
    """The command that records that a process of this version lives. Its reply is for `check`."""
    lasts_s = _LONGEST_S + settings.keep_s  # how long others may read this process's data
    return "EVAL", NOTE_VERSION, 1, settings.keys.wire_versions(), WIRE_VERSION, round(lasts_s * 1000)


def check(strangers: list[int]) -> None:
    """`strangers`: versions that aren't neighbours. Logs and raises: WireMismatch, if there are any."""
    if strangers:
        theirs = ", ".join(map(str, sorted(strangers)))
        reason = (
            f"Processes of wire version {theirs} use this deployment or did so lately, and this one has version "
            f"{WIRE_VERSION}: only neighbours understand each other. Upgrade through the versions between, or use "
            "another XYLEM_DEPLOYMENT."
        )
        log.critical("wire_version_differs", reason=reason)
        raise WireMismatch(reason)


async def keep_noting(wire: Wire, settings: Settings) -> None:
    """Repeats the note until cancelled. Ends the process if a version lives that can't understand it."""

    async def again() -> None:
        (strangers,) = await wire.execute([note(settings)])
        try:
            check(strangers)
        except WireMismatch:
            os.kill(os.getpid(), signal.SIGTERM)

    await keep("wire_version_not_noted", again, _EVERY_S, later=True)
