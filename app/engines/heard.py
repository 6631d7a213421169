"""Measures how long something is heard in a sound. Pure."""

from typing import Any

import numpy as np

_FRAME = 320  # samples over which loudness is measured: 20 ms
_SILENT = 1e-3  # root mean square, as in `app/media/windows.py`


def heard_samples(samples: Any) -> int:
    """Behind so many samples all is silent."""
    whole = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME)
    power = np.einsum("ij,ij->i", whole, whole, dtype=np.float64) / _FRAME  # without a copy of all samples
    rest = samples[len(whole) * _FRAME :].astype(np.float64)
    if rest @ rest / _FRAME >= _SILENT**2:
        return len(samples)
    loud = np.flatnonzero(power >= _SILENT**2)
    return (int(loud[-1]) + 1) * _FRAME if len(loud) else 0
