"""Intervals and deadlines that depend on each other, in seconds, derived from a few settings.

Whatever the settings are, none gets too short for a process to reconnect to Redis.
"""

from typing import NamedTuple

COMMANDS_TTL_S = 60  # of commands to a worker that has ended before it read them
_RENEWALS = 12  # of an API replica's lease before it expires: some may be late, or Redis may be


class Intervals(NamedTuple):
    heartbeat_s: float = 0.5  # how often a worker renews its lease
    api_ttl_s: float = 3.0  # an API replica or batch worker that has not renewed its lease for so long is dead

    @property
    def look_s(self) -> float:
        """Seconds between an API replica's renewals of its lease, and between its searches for dead workers."""
        return min(0.25, self.api_ttl_s / _RENEWALS)

    @property
    def adopt_s(self) -> float:
        """Seconds that an API replica's lease has to be missing before others adopt its kept answers."""
        return max(1.0, self.api_ttl_s / 3)

    @property
    def drop_s(self) -> float:
        """Seconds that a lease has to be missing before workers drop its requests: Redis may have lost one in use."""
        return max(3.0, self.api_ttl_s)

    @property
    def steady_s(self) -> float:
        """Seconds that Redis has to be up before a missing lease means a dead worker: live ones renew theirs first."""
        return max(3.0, 1 + 4 * self.heartbeat_s)

    @property
    def batches_steady_s(self) -> float:
        """Seconds that Redis has to be up before batches are checked: batch workers report their parts every 5 s."""
        return max(6.0, 2 * self.steady_s)
