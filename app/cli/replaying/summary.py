"""What a replay has measured, as figures and as tables."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from app.cli.replaying.player import Player

_RECENT = 1000  # outcomes in the live view: it is computed twice a second


def summary(player: Player, planned: int) -> dict[str, Any]:
    """Times in milliseconds, lengths in tokens. Failed requests count as such only."""
    outcomes = player.outcomes
    good = [o for o in outcomes if o.ended and not o.error]
    seconds = max((o.ended for o in outcomes), default=0.0)
    told = [o for o in good if o.cached is not None]
    return {
        "requests": {
            "planned": planned,
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
        "cached_share": round(sum(o.cached or 0 for o in told) / max(1, sum(o.prompt for o in told)), 4)
        if told
        else None,
        "sent_late_ms": _spread(o.sent - o.due for o in outcomes if o.sent),
        "errors": dict(player.errors.most_common(10)),
        "stopped": player.stopped,
    }


def table(results: dict[str, Any]) -> Table:
    made = Table("", "mean", "p50", "p90", "p99", "most", box=None, padding=(0, 2, 0, 0), header_style="dim")
    requests = results["requests"]
    counts = f"{requests['sent']} of {requests['planned']}, {requests['failed']} failed"
    made.add_row("requests sent", counts)
    for name, key in (("TTFT, ms", "ttft_ms"), ("ITL, ms", "itl_ms"), ("sent late, ms", "sent_late_ms")):
        spread = results[key]
        cells = [] if spread is None else [f"{spread[p]:,.1f}" for p in ("mean", "p50", "p90", "p99", "max")]
        made.add_row(name, *cells)
    made.add_row("tokens/s of answers", f"{results['tokens_per_s']:,}")
    for name, key in (("prompt tokens", "prompt_tokens"), ("answer tokens", "answer_tokens")):
        made.add_row(name, f"{results[key]['measured']:,}, wanted {results[key]['wanted']:,}")
    share = results["cached_share"]
    made.add_row("cached share of prompts", "not told by the server" if share is None else f"{share:.1%}")
    return made


def live(player: Player, planned: int) -> Table:
    """Of now: times and the cached share of the last requests."""
    recent = [o for o in player.outcomes[-_RECENT:] if o.first]
    ended = [o for o in recent if o.ended and not o.error and o.answer]
    made = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    failed = sum(player.errors.values())
    made.add_row(
        "sent", f"{len(player.outcomes)} of {planned}", "in flight", f"{player.in_flight}", "failed", f"{failed}"
    )
    for name, spread in (
        ("TTFT, ms", _spread(o.first - o.sent for o in recent)),
        ("ITL, ms", _spread(o.itl for o in ended if o.itl is not None)),
    ):
        if spread is not None:
            made.add_row(name, "", "p50", f"{spread['p50']:,.1f}", "p99", f"{spread['p99']:,.1f}")
    if ended:
        span = max(1e-3, max(o.ended for o in ended) - min(o.sent for o in ended))
        share = sum(o.cached or 0 for o in ended) / max(1, sum(o.prompt for o in ended))
        rate = sum(o.answer for o in ended) / span
        made.add_row("tokens/s", f"{rate:,.0f}", "cached", f"{share:.0%}", "at", f"{player.elapsed:.0f} s")
    return made


def _lengths(pairs: Iterable[tuple[int, int]]) -> dict[str, int]:
    known = list(pairs)
    return {"wanted": sum(wanted for wanted, _ in known), "measured": sum(measured for _, measured in known)}


def _spread(seconds: Iterable[float]) -> dict[str, float] | None:
    """In milliseconds; None: there are none."""
    known = sorted(seconds)
    if not known:
        return None
    mean = sum(known) / len(known)
    figures = {"mean": mean, **{f"p{p}": _percentile(known, p) for p in (50, 90, 99)}, "max": known[-1]}
    return {name: round(value * 1000, 3) for name, value in figures.items()}


def _percentile(known: Sequence[float], percent: int) -> float:
    return known[min(len(known) - 1, len(known) * percent // 100)]
