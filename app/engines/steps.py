"""Measures how long an engine's steps take, by how many requests are in them. Pure."""

from msgspec import Struct

_KEPT = 0.998  # weight of earlier steps at each new one: about the last 500 count
_OUTLIER = 4.0  # longer steps, as a multiple of the mean, are cut to this: something else delayed them
_LEAST_SPREAD = 0.01  # variance of the requests in a step over their mean squared; below it there is no fit


class StepFit(Struct, frozen=True):
    """A step takes `base_s` + requests · `request_s`. While that is unknown it is 0, and `base_s` is the mean."""

    base_s: float = 0.0
    request_s: float = 0.0


class StepMeter:
    """Least squares over the steps that computed no prompt; older ones fade."""

    def __init__(self) -> None:
        # Sums over the steps: of 1, requests, their squares, seconds, and requests times seconds.
        self._w = self._n = self._nn = self._t = self._nt = 0.0
        self._fit = StepFit()

    def add(self, requests: int, seconds: float) -> None:
        if self._w and seconds > _OUTLIER * (mean := self._t / self._w):
            seconds = _OUTLIER * mean
        self._w = self._w * _KEPT + 1
        self._n = self._n * _KEPT + requests
        self._nn = self._nn * _KEPT + requests * requests
        self._t = self._t * _KEPT + seconds
        self._nt = self._nt * _KEPT + requests * seconds

    def add_sums(self, steps: float, requests: float, squares: float, seconds: float, products: float) -> None:
        """Several steps at once: sums over them of requests, their squares, seconds, and requests times seconds."""
        weight = _KEPT**steps
        self._w = self._w * weight + steps
        self._n = self._n * weight + requests
        self._nn = self._nn * weight + squares
        self._t = self._t * weight + seconds
        self._nt = self._nt * weight + products

    def read(self) -> StepFit:
        """The fit; while steps don't tell what a request adds, with the last known `request_s`."""
        if not self._w:
            return self._fit
        n, t = self._n / self._w, self._t / self._w
        variance = self._nn / self._w - n * n
        a_request = self._fit.request_s
        if variance > _LEAST_SPREAD * n * n:
            a_request = max(0.0, (self._nt / self._w - n * t) / variance)
        if a_request > 0:
            a_request = min(a_request, t / n)
        if a_request > 0 or not self._fit.request_s:
            self._fit = StepFit(t - n * a_request, a_request)
        return self._fit
