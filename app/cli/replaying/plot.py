"""A picture of a replay: times and load over its seconds. It needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path

from app.cli.replaying.sending import Outcome


def plot(path: Path, outcomes: Sequence[Outcome], title: str) -> None:
    """Draws a plot in the format of the path's ending: png, svg or pdf. Raises: ImportError, OSError, ValueError."""
    from matplotlib.figure import Figure

    good = [o for o in outcomes if o.ended and not o.error]
    figure = Figure(figsize=(10, 8), layout="constrained")
    figure.suptitle(title)
    ttft, itl, flight, rate = figure.subplots(4, sharex=True)
    ttft.plot([o.sent for o in good], [(o.first - o.sent) * 1000 for o in good], ".", markersize=3)
    ttft.set_ylabel("TTFT, ms")
    points = [(o.sent, o.itl * 1000) for o in good if o.itl is not None]
    itl.plot([at for at, _ in points], [ms for _, ms in points], ".", markersize=3)
    itl.set_ylabel("mean ITL, ms")
    flight.step(*_in_flight(outcomes), where="post")
    flight.set_ylabel("in flight")
    seconds = range(int(max((o.ended for o in good), default=0.0)) + 1)
    tokens = [0] * len(seconds)
    for o in good:
        tokens[int(o.ended)] += o.answer
    rate.step(list(seconds), tokens, where="post")
    rate.set_ylabel("tokens of answers\nthat ended, per s")
    rate.set_xlabel("seconds")
    for axes in (ttft, itl, flight, rate):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.savefig(path)


def _in_flight(outcomes: Sequence[Outcome]) -> tuple[list[float], list[int]]:
    steps = sorted([(o.sent, 1) for o in outcomes] + [(o.ended, -1) for o in outcomes])
    at, count, now = [0.0], [0], 0
    for time, change in steps:
        now += change
        at.append(time)
        count.append(now)
    return at, count
