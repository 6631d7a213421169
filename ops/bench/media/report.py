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
        made = table("Hostile input that got through", "case and what came of it", left=["case and what came of it"])
        for case in results["hostile_through"]:
            made.add_row(case)
        yield made
    if results.get("seen_wrong"):
        columns = ("question", "wanted", "got")
        made = table(f"Wrong answers about pictures of seed {results['seen_seed']}", *columns, left=columns)
        for one in results["seen_wrong"]:
            made.add_row(one["question"], one["wanted"], one["got"])
        yield made
    if pairs := results.get("second_question_pairs"):
        made = table("Two questions about each picture, time to the first token", "first, ms", "second, ms", "ratio")
        for first, again in pairs:
            made.add_row(f"{1000 * first:.0f}", f"{1000 * again:.0f}", f"{again / first:.3f}")
        yield made
    if turns := results.get("flood_turns"):
        made = table("Text beside a flood of pictures, time between tokens, p99", "apart, ms", "together, ms", "ratio")
        for apart, together in turns:
            made.add_row(f"{apart:.0f}", f"{together:.0f}", f"{apart / together:.3f}")
        yield made
    for part, unit in _PAIRS.items():
        if pairs := results.get(f"{part}_pairs"):
            made = table(f"{part}: {unit} in each turn", "through us", "engine alone", "ratio")
            for ours, theirs in pairs:
                made.add_row(f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.3f}")
            yield made


def plot(results: Results, path: Path) -> None:
    """Times of both questions about each picture, and between tokens; the ratio of each turn of painting and speech."""
    figure = Figure(figsize=(15, 4), layout="tight")
    left, middle, right = figure.subplots(1, 3)
    if pairs := results.get("second_question_pairs"):
        left.plot([first for first, _ in pairs], "o-", color="tab:gray", label="first question")
        left.plot([again for _, again in pairs], "o-", color="tab:green", label="second question")
        left.legend()
    left.set(title="time to the first token", xlabel="picture", ylabel="s")
    left.set_ylim(bottom=0)
    if turns := results.get("flood_turns"):
        middle.plot([together for _, together in turns], "o-", color="tab:gray", label="encoded together")
        middle.plot([apart for apart, _ in turns], "o-", color="tab:green", label="encoded apart")
        middle.legend()
    middle.set(title="time between tokens beside a flood of pictures, p99", xlabel="turn", ylabel="ms")
    middle.set_ylim(bottom=0)
    for part, colour in (("images", "tab:green"), ("sound", "tab:blue")):
        if pairs := results.get(f"{part}_pairs"):
            right.plot([ours / theirs for ours, theirs in pairs], "o-", color=colour, label=part)
            right.legend()
    for part, key in (("images", "images_ratio"), ("sound", "transcribe_ratio")):
        right.axhline(TARGETS[part][key][0], color="gray", linestyle=":")  # type: ignore[index]
    right.set(title="through us over the engine alone", xlabel="turn")
    figure.savefig(path, dpi=90)
