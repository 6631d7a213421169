"""Measures from its requests how fast one engine works and how busy it is. Pure: times are passed in."""

from math import exp
from statistics import fmean

from app.ids import RunId
from app.messages.lease import Speeds

_WINDOW_S = 60.0  # time constant with which measurements fade
# The time of fewer tokens is mostly a step's fixed cost, and says little about the speed.
_LEAST_TOKENS = 256


class ThroughputMeter:
    """One data-parallel rank's speeds, or the mean of several.

    An engine takes prompts in turn, so a prompt's computation began with the first token before it, or at its arrival.
    If one step computed several prompts, the first one gets their whole time: the sums are right, single values may
    not be.
    """

    def __init__(self, ranks: int = 1) -> None:
        self._ranks = ranks
        self._began: dict[RunId, float] = {}  # when each request came; if it has waited for a seat, when it had one
        self._answering: dict[RunId, float] = {}  # the same, of those with a first token
        self._last: dict[int, float] = {}  # rank → time of the last request's first token
        self._start: float | None = None
        self._now = 0.0
        # Sums that fade.
        self._tokens = self._token_s = self._prefills = self._busy_s = self._requests = self._request_s = 0.0
        self._pulled_bytes = self._pulled_s = self._reused = 0.0

    def begin(self, run: RunId, now: float) -> None:
        """A request arrived at the engine; `now` in seconds of any clock."""
        if self._start is None:
            self._start = self._now = now
        self._began[run] = now

    def first_token(
        self, run: RunId, rank: int, tokens: int, now: float, *, reused_tokens: int = 0, queued: bool = False
    ) -> None:
        """`tokens` of its prompt were computed, and `reused_tokens` cached.

        `queued`: it may have waited for a seat, so its prefill time is unknown.
        """
        took = now - max(self._began[run], self._last.get(rank, 0.0))
        self._last[rank] = now
        self._fade(now)
        self._prefills += 1
        self._reused += reused_tokens
        self.has_seat(run, now, queued=queued)
        if queued:
            return
        self._busy_s += took
        if tokens >= _LEAST_TOKENS:
            self._tokens += tokens
            self._token_s += took

    def has_seat(self, run: RunId, now: float, *, queued: bool) -> None:
        """Notes the request's first token. `queued`: it may have waited for its seat until now, and held nothing."""
        if queued:
            self._began[run] = now
        self._answering[run] = self._began[run]

    def pulled(self, size: int, seconds: float, now: float) -> None:
        """A prompt's KV, `size` bytes, was pulled from another engine in `seconds`."""
        self._fade(now)
        self._pulled_bytes += size
        self._pulled_s += seconds

    def end(self, run: RunId, now: float) -> None:
        """The request has ended, with or without a first token."""
        self._fade(now)
        self._requests += 1
        self._request_s += now - self._began.pop(run)
        self._answering.pop(run, None)

    def read(self, now: float) -> Speeds:
        if self._start is None:
            return Speeds()
        self._fade(now)
        # A sum that has faded since the start stands for this many seconds.
        span = self._ranks * max(1.0, _WINDOW_S * (1 - exp((self._start - now) / _WINDOW_S)))
        return Speeds(
            prefill_tokens_per_s=self._tokens / self._token_s if self._token_s > 0 else 0.0,
            prefills_per_s=self._prefills / span,
            busy=min(1.0, self._busy_s / span),
            request_s=self._holding_s(now),
            pulled_bytes_per_s=self._pulled_bytes / self._pulled_s if self._pulled_s > 0 else 0.0,
            reused_tokens_per_s=self._reused / span,
        )

    def _holding_s(self, now: float) -> float:
        """Mean seconds that a request holds its seat, of those that have ended.

        If these are fewer than answer now, it is at least the mean age of those that answer. Ages are mostly those of
        long requests, so they count only where they say more than the few that have ended.
        """
        mean_s = self._request_s / self._requests if self._requests > 0 else 0.0
        if self._requests >= len(self._answering):
            return mean_s
        return max(mean_s, fmean(now - began for began in self._answering.values()))

    def _fade(self, now: float) -> None:
        factor, self._now = exp((self._now - now) / _WINDOW_S), now
        self._tokens *= factor
        self._token_s *= factor
        self._prefills *= factor
        self._busy_s *= factor
        self._requests *= factor
        self._request_s *= factor
        self._pulled_bytes *= factor
        self._pulled_s *= factor
        self._reused *= factor
