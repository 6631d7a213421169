"""make engines [VLLM=0.31.0] [SGLANG=…]: what a version of an engine has that the installed one hasn't, or the reverse.

A build for CPUs is also run. Ends with one line of JSON, and with status 1 if the adapters have something to decide on.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ops.engines.fetch import Fetched, complete, fetch
from ops.engines.known import ROOT, undecided
from ops.engines.surface import surface


def installed(engine: str) -> Path:
    spec = find_spec(engine)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"no {engine} is installed")
    return Path(spec.submodule_search_locations[0])


def compare(engine: str, version: str) -> dict[str, Any]:
    package = fetch(engine, version)
    here = surface(installed(engine), engine)
    there = surface(package.folder / engine, engine)
    print(f"\n{engine} {version} ({package.build}) against the installed one\n")
    for part, names in there.items():
        print(f"{part:28} {len(names):4}  {'the file is gone' if not names else ''}")
        for sign, some in (("+", names - here[part]), ("-", here[part] - names)):
            for name in sorted(some):
                print(f"    {sign} {name}")
    sentences = undecided(engine, there)
    print("", *(sentences or ["Nothing to decide on."]), sep="\n")
    change_counts = {part: [len(names - here[part]), len(here[part] - names)] for part, names in there.items()}
    ran = run(package) if package.runs() else f"not run: {package.build} is no build for the installed torch"
    print(f"\nrun: {ran}")
    return {
        "engine": engine,
        "version": version,
        "build": package.build,
        "changed": change_counts,
        "undecided": sentences,
        "run": ran,
    }


def run(fetched: Fetched) -> Any:
    """The adapter on it: what `trial` prints, or its error."""
    complete(fetched)
    path = os.pathsep.join((str(fetched.folder), str(ROOT)))
    ran = subprocess.run(
        [sys.executable, "-m", "ops.engines.trial"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        errors = [line for line in ran.stderr.splitlines() if re.match(r"[\w.]+: ", line)]
        return f"failed: {errors[-1] if errors else ran.stderr}"
    return json.loads(next(line for line in reversed(ran.stdout.splitlines()) if line.startswith("{")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for engine in ("vllm", "sglang"):
        parser.add_argument(f"--{engine}", metavar="VERSION")
    versions = {engine: version for engine, version in vars(parser.parse_args()).items() if version}
    if not versions:
        parser.error("name a version")
    rows = [compare(engine, version) for engine, version in versions.items()]
    print(json.dumps(rows if len(rows) > 1 else rows[0]))
    sys.exit(any(row["undecided"] for row in rows))


if __name__ == "__main__":
    main()
