"""How fast one engine works and how busy it is, measured from its requests. Pure: times are passed in."""

from math import exp

from app.ids import RunId
from app.messages import Speeds

_WINDOW_S = 60.0  # what was measured fades with this time constant
# Of fewer tokens one learns what a step costs and not what a token does.
_LEAST_TOKENS = 256


class ThroughputMeter:
    """One data-parallel rank's pace, or the mean of several's.

    An engine takes prompts in turn, so one has been computed since the first token before it, or since it came. What
    several prompts of one step took is counted with the first of them: the sums are right, single figures needn't be.
    """

    def __init__(self, ranks: int = 1) -> None:
        self._ranks = ranks
        self._began: dict[RunId, float] = {}  # when each request came
        self._last: dict[int, float] = {}  # rank → its last first token
        self._start: float | None = None
        self._now = 0.0
        # Sums that fade.
        self._tokens = self._token_s = self._prefills = self._busy_s = self._requests = self._request_s = 0.0
        self._pulled_bytes = self._pulled_s = 0.0

    def begin(self, run: RunId, now: float) -> None:
        """A request came to the engine; `now` in seconds of any clock."""
        if self._start is None:
            self._start = self._now = now
        self._began[run] = now

    def first_token(self, run: RunId, rank: int, tokens: int, now: float, *, queued: bool = False) -> None:
        """`tokens` of its prompt were computed, the others cached.

        `queued`: it may have waited for a seat, so that nothing is known about how long its prefill took.
        """
        took = now - max(self._began[run], self._last.get(rank, 0.0))
        self._last[rank] = now
        self._fade(now)
        self._prefills += 1
        if queued:
            return
        self._busy_s += took
        if tokens >= _LEAST_TOKENS:
            self._tokens += tokens
            self._token_s += took

    def pulled(self, size: int, seconds: float, now: float) -> None:
        """A prompt's KV came from another engine: so many bytes."""
        self._fade(now)
        self._pulled_bytes += size
        self._pulled_s += seconds

    def end(self, run: RunId, now: float) -> None:
        """It holds nothing any more, whether or not it had a first token."""
        self._fade(now)
        self._requests += 1
        self._request_s += now - self._began.pop(run)

    def read(self, now: float) -> Speeds:
        if self._start is None:
            return Speeds()
        self._fade(now)
        # Of a sum that fades since the start, this many seconds are left.
        span = self._ranks * max(1.0, _WINDOW_S * (1 - exp((self._start - now) / _WINDOW_S)))
        return Speeds(
            prefill_tokens_per_s=self._tokens / self._token_s if self._token_s > 0 else 0.0,
            prefills_per_s=self._prefills / span,
            busy=min(1.0, self._busy_s / span),
            request_s=self._request_s / self._requests if self._requests > 0 else 0.0,
            pulled_bytes_per_s=self._pulled_bytes / self._pulled_s if self._pulled_s > 0 else 0.0,
        )

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
