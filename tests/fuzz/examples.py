"""Number of inputs that a test tries: in tests the same few each time; in `make fuzz` others, many times as many."""

import os
from typing import Any

from hypothesis import settings

_TIMES = int(os.environ.get("FUZZ_TIMES", "1"))


def examples(count: int, **options: Any) -> settings:
    return settings(max_examples=count * _TIMES, derandomize=_TIMES == 1, **options)
