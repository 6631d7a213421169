"""Intervals and deadlines that depend on each other, in seconds, from the few that are settings.

None of them gets so short that a process could not reconnect to Redis meanwhile, whatever the settings are.
"""

from typing import NamedTuple

_LOOKS = 12  # within the time after which an API replica is taken for dead: one may be late, or Redis may be


class Intervals(NamedTuple):
    heartbeat_s: float = 0.5  # how often a worker renews its lease
    api_ttl_s: float = 3.0  # an API replica or batch worker without a sign for so long is dead

    @property
    def look_s(self) -> float:
        """How often an API replica says that it lives, and looks for dead workers."""
        return min(0.25, self.api_ttl_s / _LOOKS)

    @property
    def adopt_s(self) -> float:
        """For how long the sign of an API replica has to be missing until others take over its kept answers."""
        return max(1.0, self.api_ttl_s / 3)

    @property
    def drop_s(self) -> float:
        """And until workers drop what it had placed: it may have lost its sign with Redis, and write it anew."""
        return max(3.0, self.api_ttl_s)

    @property
    def steady_s(self) -> float:
        """For how long Redis has to be there until a missing lease is a dead worker: the others renew theirs first."""
        return max(3.0, 1 + 4 * self.heartbeat_s)

    @property
    def batches_steady_s(self) -> float:
        """And until batches are looked at: a batch worker first says, each 5 s, which parts it has."""
        return max(6.0, 2 * self.steady_s)
