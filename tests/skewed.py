"""Runs a command of this environment whose wall clock is ahead: `python -m tests.skewed SECONDS COMMAND …`.

What is behind says a negative number. Redis, and the monotonic clock, are as they are.
"""

import runpy
import sys
import time


def main() -> None:
    seconds, wall = float(sys.argv[1]), time.time
    time.time = lambda: wall() + seconds
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
