"""The time that a batch may take: OpenAI's "24h", or as an extension any other time up to 30 days."""

import re

from app.errors import RequestError

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MOST_S = 30 * 86_400


def read_window(window: str) -> int:
    """Seconds. Raises: RequestError."""
    match = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", window)
    seconds = int(match[1]) * _UNITS_S[match[2]] if match else 0
    if not 1 <= seconds <= MOST_S:
        raise RequestError(
            f"'{window[:20]}' is no 'completion_window': a number and one of s, m, h, d, from 1s to 30d, such as 24h.",
            param="completion_window",
        )
    return seconds
