"""Targets, tables, a plot."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from ops.bench.parts import Results, Target, table

TITLE = "Media"
TARGETS: dict[str, dict[str, Target]] = {
    "guards": {
        "decode_ms_4mp": None,
        "loop_held_ms": (5, False),
        "hostile_cases": (40, True),
        "hostile_let_through": (0, False),
        "loop_held_idle_ms": None,
    },
    "seeing": {
        "epd_equal": (1.0, True),
        "seen": (40, True),
    },
    "second_question": {
        "second_question_ttft_ratio": (0.35, False),
        "first_question_ttft_ms": None,
        "second_question_ttft_ms": None,
        "text_question_ttft_ms": None,
        "second_question_picture_tokens": None,
        "second_question_cached_share": None,
        "first_question_cached_tokens": None,
    },
    "flood": {
        "itl_p99_ratio": (0.5, False),
        "itl_p99_apart_ms": None,
        "itl_p99_together_ms": None,
        "itl_p99_idle_ms": None,
        "flood_steps": None,
        "flood_encode_ms": None,
        "flood_apart_picture_ms": None,
        "flood_together_picture_ms": None,
    },
    "images": {
        "images_ratio": (0.97, True),
        "cancel_steps": (1, False),
        "images_per_s": None,
        "loop_images_per_s": None,
    },
    "sound": {
        "transcribe_ratio": (0.95, True),
        "transcribed_s_per_s": None,
        "alone_s_per_s": None,
    },
}
_PAIRS = {"images": "pictures/s", "sound": "seconds of speech/s"}


def tables(results: Results) -> Iterator[Table]:
    if results.get("hostile_through"):
        result_table = table(
            "Hostile input that got through", "case and what came of it", left=["case and what came of it"]
        )
        for case in results["hostile_through"]:
            result_table.add_row(case)
        yield result_table
    if results.get("seen_wrong"):
        columns = ("question", "wanted", "got")
        result_table = table(f"Wrong answers about pictures of seed {results['seen_seed']}", *columns, left=columns)
        for one in results["seen_wrong"]:
            result_table.add_row(one["question"], one["wanted"], one["got"])
        yield result_table
    if pairs := results.get("second_question_pairs"):
        result_table = table(
            "Two questions about each picture, time to the first token", "first, ms", "second, ms", "ratio"
        )
        for first, again in pairs:
            result_table.add_row(f"{1000 * first:.0f}", f"{1000 * again:.0f}", f"{again / first:.3f}")
        yield result_table
    if turns := results.get("flood_turns"):
        result_table = table(
            "Text beside a flood of pictures, time between tokens, p99", "apart, ms", "together, ms", "ratio"
        )
        for apart, together in turns:
            result_table.add_row(f"{apart:.0f}", f"{together:.0f}", f"{apart / together:.3f}")
        yield result_table
    for part, unit in _PAIRS.items():
        if pairs := results.get(f"{part}_pairs"):
            result_table = table(f"{part}: {unit} in each turn", "through us", "engine alone", "ratio")
            for ours, theirs in pairs:
                result_table.add_row(f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.3f}")
            yield result_table


def plot(results: Results, path: Path) -> None:
    """Times of both questions about each picture, and between tokens; the ratio of each turn of painting and speech."""
    figure = Figure(figsize=(15, 4), layout="tight")
    left_axes, middle_axes, right_axes = figure.subplots(1, 3)
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
    for part, colour in (("images", "tab:green"), ("sound", "tab:blue")):
        if pairs := results.get(f"{part}_pairs"):
            right_axes.plot([ours / theirs for ours, theirs in pairs], "o-", color=colour, label=part)
            right_axes.legend()
    for part, key in (("images", "images_ratio"), ("sound", "transcribe_ratio")):
        right_axes.axhline(TARGETS[part][key][0], color="gray", linestyle=":")  # type: ignore[index]
    right_axes.set(title="through us over the engine alone", xlabel="turn")
    figure.savefig(path, dpi=90)
