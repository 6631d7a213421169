"""Finds where to cut a long sound: in a pause if there is one, else where it is quietest. Runs in a decoder process."""

from typing import Any

import numpy as np

_FRAME = 320  # samples over which loudness is measured: 20 ms
_PAUSE = 15  # frames that have to be quiet together
_LEAST = 0.5  # of a window's greatest length, before which it is not cut
_REST = 5 * 16_000  # samples that at least stay for the last window, if possible: Whisper guesses at scraps
_SILENT = 1e-3  # root mean square: -60 dB of the loudest that there is
_QUIET = 0.05  # of the loudness of the speech around it


class Loudness:
    """Root mean squares of frames, and of pauses."""

    def __init__(self, samples: Any) -> None:
        self.samples = len(samples)
        whole = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME)
        power = np.einsum("ij,ij->i", whole, whole, dtype=np.float64)  # without a copy of all samples
        rest = samples[len(whole) * _FRAME :].astype(np.float64)
        self._power = np.append(power, rest @ rest) / _FRAME
        self._total = np.concatenate(([0.0], np.cumsum(self._power)))

    def is_silent(self, start: int, end: int) -> bool:
        """Whether nothing can be heard in these samples."""
        frames = self._power[start // _FRAME : -(-end // _FRAME)]
        return bool(np.sqrt(frames.max()) < _SILENT)

    def quietest(self, start: int, end: int) -> int:
        """The sample in between where to cut: in the last pause, or in the quietest moment."""
        first, last = start // _FRAME, end // _FRAME
        if last - first <= _PAUSE:
            return end
        means = (self._total[first + _PAUSE : last + 1] - self._total[first : last + 1 - _PAUSE]) / _PAUSE
        levels = np.sqrt(np.maximum(means, 0.0))
        loud = np.sqrt(np.percentile(self._power[first:last], 90))
        pauses = np.flatnonzero(levels < max(_SILENT, _QUIET * loud))
        at = int(pauses[-1]) if len(pauses) else int(levels.argmin())
        return (first + at) * _FRAME + _PAUSE * _FRAME // 2


def windows(loudness: Loudness, most: int) -> list[tuple[int, int]]:
    """The begin and end, in samples, of windows of at most `most`: together they are the whole sound."""
    cut, start, end = [], 0, loudness.samples
    while end - start > most:
        least = start + int(most * _LEAST)
        here = loudness.quietest(least, min(start + most, max(end - _REST, least + most // 4)))
        cut.append((start, here))
        start = here
    return [*cut, (start, end)]
