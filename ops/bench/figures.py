"""The figures of a benchmark: what each aims at, all that it declares, and why one is missing."""

import json
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path

from rich.console import Console

_MISSING = "missing.json"  # in the report's folder: why each figure is null that is
Target = tuple[float, bool] | None  # and whether it is a minimum
Targets = dict[str, dict[str, Target]]  # by part and figure; the figures are the keys of the line of JSON


def targets(text: str) -> Targets:
    """`load: p99_ms <= 4, mean_ms` → {"load": {"p99_ms": (4.0, False), "mean_ms": None}}

    A line for each part; one without a part goes on with the part before it.
    """
    aims: Targets = {}
    part = ""
    for line in text.strip().splitlines():
        name, colon, figures = line.rpartition(":")
        part = name.strip() if colon else part
        for figure in filter(None, (one.strip() for one in figures.split(","))):
            key, *limit = figure.split()
            aim = (float(Fraction(limit[1])), limit[0] == ">=") if limit else None
            aims.setdefault(part, {})[key] = aim
    return aims


def tell(
    declared: Iterable[str],
    found: Mapping[str, float | None],
    missing: Mapping[str, str],
    out_dir: Path,
    shown: Console,
) -> str:
    """Prints why figures are null, and last the line of JSON, which it returns: of each declared figure its value.

    `missing`: a reason by figure, which counts more than a value; or by a part that has no figure.
    """
    line: dict[str, float | None] = {}
    reasons: dict[str, list[str]] = {}
    for key in declared:
        value = found.get(key)
        why = missing.get(key) or (None if value is not None and math.isfinite(value) else "nothing measured it")
        line[key] = None if why or value is None else float(f"{value:.4g}")
        if why:
            reasons.setdefault(why, []).append(key)
    for key in missing.keys() - line.keys():
        reasons.setdefault(missing[key], []).append(key)
    for why, keys in reasons.items():
        shown.print(f"not measured: {', '.join(keys)}: {why}", style="yellow", markup=False, soft_wrap=True)
    by_key = {key: why for why, keys in reasons.items() for key in keys}
    (out_dir / _MISSING).write_text(json.dumps(by_key, indent=1))
    text = json.dumps(line)
    print(text, flush=True)
    return text
