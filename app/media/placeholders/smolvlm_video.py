"""A video in a prompt, as SmolVLM's own processor writes it: its frames are pictures, each behind its time."""

from collections.abc import Sequence
from datetime import timedelta

from app.messages.media import Frame

CLOSING = "\n\n"
_INTRO = "You are provided the following series of {count} frames from a {long} [H:MM:SS] video.\n"
_AT = "\nFrame from {minutes:02d}:{seconds:02d}:"
_ONES = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen
""".split()
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def before_frames(frames: Sequence[Frame]) -> list[str]:
    """The texts before each frame; `CLOSING` comes behind the last."""
    times = [_AT.format(minutes=int(one.at_s) // 60, seconds=int(one.at_s) % 60) for one in frames]
    intro = _INTRO.format(count=_number(len(frames)), long=timedelta(seconds=int(frames[0].long_s)))
    return [intro + times[0], *times[1:]]


def _number(count: int) -> str:
    """The number in words up to 99, as the processor has it."""
    if count < len(_ONES):
        return _ONES[count]
    tens, ones = divmod(count, 10)
    if tens - 2 >= len(_TENS):
        return str(count)
    return f"{_TENS[tens - 2]}-{_ONES[ones]}" if ones else _TENS[tens - 2]
