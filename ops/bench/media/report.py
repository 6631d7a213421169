"""Targets, tables, a plot."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from ops.bench.figures import targets
from ops.bench.panels import panels
from ops.bench.parts import Results, table

TITLE = "Media"
TARGETS = targets("""
    guards: decode_ms_4mp, loop_held_ms <= 5, hostile_cases >= 40, hostile_let_through <= 0, loop_held_idle_ms
    seeing: epd_equal >= 1, seen >= 40
    second_question: second_question_ttft_ratio <= 0.35, first_question_ttft_ms, second_question_ttft_ms
                     text_question_ttft_ms, second_question_picture_tokens, second_question_cached_share
                     first_question_cached_tokens
    flood: itl_p99_ratio <= 0.5, itl_p99_apart_ms, itl_p99_together_ms, itl_p99_idle_ms, flood_steps, flood_encode_ms
           flood_apart_picture_ms, flood_together_picture_ms
    images: images_ratio >= 0.97, cancel_steps <= 1, images_per_s, loop_images_per_s
    sound: transcribe_ratio >= 0.95, transcribed_s_per_s, alone_s_per_s
""")
_PAIRS = {"images": "pictures/s", "sound": "seconds of speech/s"}


def tables(results: Results) -> Iterator[Table]:
    if cases := results.get("hostile_through"):
        name = "case and what came of it"
        yield table("Hostile input that got through", name, rows=zip(cases, strict=True), left=[name])
    if mistakes := results.get("seen_wrong"):
        columns = ("question", "wanted", "got")
        rows = ([one[column] for column in columns] for one in mistakes)
        yield table(f"Wrong answers about pictures of seed {results['seen_seed']}", *columns, rows=rows, left=columns)
    if pairs := results.get("second_question_pairs"):
        times = [(1000 * again, 1000 * first) for first, again in pairs]
        title = "Two questions about each picture, time to the first token"
        yield table(title, "first, ms", "second, ms", "ratio", rows=((b, a, c) for a, b, c in _ratios(times, ".0f")))
    if turns := results.get("flood_turns"):
        title = "Text beside a flood of pictures, time between tokens, p99"
        yield table(title, "apart, ms", "together, ms", "ratio", rows=_ratios(turns, ".0f"))
    for part, unit in _PAIRS.items():
        if pairs := results.get(f"{part}_pairs"):
            names = ("through us", "engine alone", "ratio")
            yield table(f"{part}: {unit} in each turn", *names, rows=_ratios(pairs, ".2f"))


def _ratios(pairs: Sequence[tuple[float, float]], form: str) -> Iterator[tuple[str, str, str]]:
    """Both sides, and the first over the second."""
    return ((f"{one:{form}}", f"{other:{form}}", f"{one / other:.3f}") for one, other in pairs)


def plot(results: Results, path: Path) -> None:
    """Times of both questions about each picture, and between tokens; the ratio of each turn of painting and speech."""
    with panels(path, (15, 4), columns=3) as (left_axes, middle_axes, right_axes):
        if pairs := results.get("second_question_pairs"):
            left_axes.plot([first for first, _ in pairs], "o-", color="tab:gray", label="first question")
            left_axes.plot([again for _, again in pairs], "o-", color="tab:green", label="second question")
            left_axes.legend()
        left_axes.set(title="time to the first token", xlabel="picture", ylabel="s")
        left_axes.set_ylim(bottom=0)
        if turns := results.get("flood_turns"):
            middle_axes.plot([together for _, together in turns], "o-", color="tab:gray", label="encoded together")
            middle_axes.plot([apart for apart, _ in turns], "o-", color="tab:green", label="encoded apart")
            middle_axes.legend()
        middle_axes.set(title="time between tokens beside a flood of pictures, p99", xlabel="turn", ylabel="ms")
        middle_axes.set_ylim(bottom=0)
        for part, colour, key in (("images", "tab:green", "images_ratio"), ("sound", "tab:blue", "transcribe_ratio")):
            if pairs := results.get(f"{part}_pairs"):
                right_axes.plot([ours / theirs for ours, theirs in pairs], "o-", color=colour, label=part)
                right_axes.legend()
            right_axes.axhline(TARGETS[part][key][0], color="gray", linestyle=":")  # type: ignore[index]
        right_axes.set(title="through us over the engine alone", xlabel="turn")
