"""Results of a replay, as figures and as tables."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from app.cli.replaying.player import Player

_RECENT = 1000  # outcomes in the live view: it is computed twice a second


def summary(player: Player, total: int) -> dict[str, Any]:
    """Times in milliseconds, lengths in tokens. Failed requests count as such only."""
    outcomes = player.outcomes
    good = [o for o in outcomes if o.ended and not o.error]
    seconds = max((o.ended for o in outcomes), default=0.0)
    cache_outcomes = [o for o in good if o.cached is not None]
    return {
        "requests": {
            "planned": total,
            "sent": len(outcomes),
            "answered": len(good),
            "failed": sum(bool(o.error) for o in outcomes),
        },
        "seconds": round(seconds, 3),
        "ttft_ms": _spread(o.first - o.sent for o in good),
        "itl_ms": _spread(o.itl for o in good if o.itl is not None),
        "prompt_tokens": _lengths((o.wanted_prompt, o.prompt) for o in good),
        "answer_tokens": _lengths((max(1, o.wanted_answer), o.answer) for o in good),
        "tokens_per_s": round(sum(o.answer for o in good) / seconds, 1) if seconds else 0.0,
        "cached_share": round(
            sum(o.cached or 0 for o in cache_outcomes) / max(1, sum(o.prompt for o in cache_outcomes)), 4
        )
        if cache_outcomes
        else None,
        "sent_late_ms": _spread(o.sent - o.due for o in outcomes if o.sent),
        "errors": dict(player.errors.most_common(10)),
        "stopped": player.stopped,
    }


def table(results: dict[str, Any]) -> Table:
    grid = Table("", "mean", "p50", "p90", "p99", "most", box=None, padding=(0, 2, 0, 0), header_style="dim")
    requests = results["requests"]
    counts = f"{requests['sent']} of {requests['planned']}, {requests['failed']} failed"
    grid.add_row("requests sent", counts)
    for name, key in (("TTFT, ms", "ttft_ms"), ("ITL, ms", "itl_ms"), ("sent late, ms", "sent_late_ms")):
        spread = results[key]
        cells = [] if spread is None else [f"{spread[p]:,.1f}" for p in ("mean", "p50", "p90", "p99", "max")]
        grid.add_row(name, *cells)
    grid.add_row("tokens/s of answers", f"{results['tokens_per_s']:,}")
    for name, key in (("prompt tokens", "prompt_tokens"), ("answer tokens", "answer_tokens")):
        grid.add_row(name, f"{results[key]['measured']:,}, wanted {results[key]['wanted']:,}")
    share = results["cached_share"]
    grid.add_row("cached share of prompts", "not told by the server" if share is None else f"{share:.1%}")
    return grid


def live(player: Player, total: int) -> Table:
    """A table of the present state: times and the cached share of the last requests."""
    recent = [o for o in player.outcomes[-_RECENT:] if o.first]
    answers = [o for o in recent if o.ended and not o.error and o.answer]
    grid = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    failures = sum(player.errors.values())
    grid.add_row(
        "sent", f"{len(player.outcomes)} of {total}", "in flight", f"{player.in_flight}", "failed", f"{failures}"
    )
    for name, spread in (
        ("TTFT, ms", _spread(o.first - o.sent for o in recent)),
        ("ITL, ms", _spread(o.itl for o in answers if o.itl is not None)),
    ):
        if spread is not None:
            grid.add_row(name, "", "p50", f"{spread['p50']:,.1f}", "p99", f"{spread['p99']:,.1f}")
    if answers:
        span = max(1e-3, max(o.ended for o in answers) - min(o.sent for o in answers))
        share = sum(o.cached or 0 for o in answers) / max(1, sum(o.prompt for o in answers))
        rate = sum(o.answer for o in answers) / span
        grid.add_row("tokens/s", f"{rate:,.0f}", "cached", f"{share:.0%}", "at", f"{player.elapsed:.0f} s")
    return grid


def _lengths(pairs: Iterable[tuple[int, int]]) -> dict[str, int]:
    all_pairs = list(pairs)
    return {"wanted": sum(target for target, _ in all_pairs), "measured": sum(actual for _, actual in all_pairs)}


def _spread(seconds: Iterable[float]) -> dict[str, float] | None:
    """Mean, percentiles and maximum, in milliseconds; None: there are no values."""
    values = sorted(seconds)
    if not values:
        return None
    mean = sum(values) / len(values)
    figures = {"mean": mean, **{f"p{p}": _percentile(values, p) for p in (50, 90, 99)}, "max": values[-1]}
    return {name: round(value * 1000, 3) for name, value in figures.items()}


def _percentile(values: Sequence[float], percent: int) -> float:
    return values[min(len(values) - 1, len(values) * percent // 100)]
