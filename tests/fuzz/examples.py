"""How many inputs a test tries: in all tests the same few each time, in `make fuzz` others, and many times as many."""

import os
from typing import Any

from hypothesis import settings

_TIMES = int(os.environ.get("FUZZ_TIMES", "1"))


def examples(count: int, **options: Any) -> settings:
    return settings(max_examples=count * _TIMES, derandomize=_TIMES == 1, **options)
