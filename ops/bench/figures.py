"""The figures of a benchmark: all that it declares, and why one is missing."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console

_MISSING = "missing.json"  # in the report's folder: why each figure is null that is


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
