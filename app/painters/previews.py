"""Chooses the steps after which a painting's unfinished state is shown."""

from app.messages.job import Painting


def preview_steps(painting: Painting) -> frozenset[int]:
    """Evenly over the steps; never the last one, which ends with the picture itself."""
    steps, parts = painting.steps, painting.previews + 1
    return frozenset(steps * part // parts for part in range(1, parts)) - {0, steps}
