"""`make gpu`: what only a GPU shows, on the engines that are installed or can be; a table, and one line of JSON.

Engines are installed beside each other, and while the checks of another one run. Ends with 1 if a check failed, and
with 0 if some could not run: they are named.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ops.docs.features import themes
from ops.gpu.environments import ENGINES, FOLDER, ROOT, environment, model
from ops.gpu.results import Result, Shown, results_of, rows_shown

_TESTS = ("test_sleep", "test_tiers", "test_engines", "test_trtllm", "test_painting", "test_contract")
_OVER_S = 120  # for the test that runs when the time is over
_SIGNS = {True: "✓", False: "✗", None: "–"}


def main() -> int:
    options = argparse.ArgumentParser(prog="make gpu")
    options.add_argument("--minutes", type=float, default=15.0, help="for all of it (15)")
    options.add_argument("--only", action="append", choices=[*ENGINES], help="engines; may be repeated")
    options.add_argument("--rehearse", action="store_true", help="without a GPU: what engines for CPUs can show")
    choice = options.parse_args()
    began, names = time.monotonic(), choice.only or [*ENGINES]
    device = gpu_name()
    if not device and not choice.rehearse:
        print("This machine has no NVIDIA GPU whose driver answers. `--rehearse` runs what needs none.")
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    results, lacks = list[Result](), dict[str, str]()
    with ThreadPoolExecutor(len(names)) as pool:
        environments = {name: pool.submit(environment, name, on_gpu=not choice.rehearse) for name in names}
        for name, coming in environments.items():
            python, lack = coming.result()
            left_s = choice.minutes * 60 - (time.monotonic() - began)
            lack = lack or model(python) or ("" if left_s > 0 else "no time was left")
            if lack:
                lacks[name] = lack
                print(f"{name}: not run: {lack}", flush=True)
            else:
                results += checked(name, python, left_s, rehearses=choice.rehearse)
    lacks |= dict.fromkeys(set(ENGINES) - set(names), "not asked for")
    return report(rows_shown(themes(), results, lacks), results, device, time.monotonic() - began)


def gpu_name() -> str:
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.splitlines()[0].strip() if answer.returncode == 0 and answer.stdout else ""


def checked(engine: str, python: str, left_s: float, *, rehearses: bool) -> list[Result]:
    """The results of the engine's checks, as many as ran in the time that is left."""
    junit, log = FOLDER / f"{engine}.xml", FOLDER / f"{engine}.log"
    junit.unlink(missing_ok=True)
    files = [f"tests/gpu/{name}.py" for name in _TESTS]
    limits = [f"--junitxml={junit}", f"--session-timeout={left_s:.0f}"]
    command = [python, "-m", "pytest", "-q", "-k", engine, *limits, *files]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "REHEARSE": "1" if rehearses else "0"}
    print(f"{engine}: {python} -m pytest -k {engine} tests/gpu, log: {log}", flush=True)
    with log.open("w") as sink, suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command, cwd=ROOT, env=env, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, check=False,
            timeout=left_s + _OVER_S,
        )  # fmt: skip
    if junit.exists():
        return results_of(junit, engine)
    last = (log.read_text(errors="replace").strip() or "no output").splitlines()[-1]
    return [Result("tests/gpu::collection", engine, "failed", last)]


def report(rows: list[Shown], results: list[Result], device: str, seconds: float) -> int:
    width = max((len(row.what) for row in rows), default=0)
    for row in rows:
        print(f"{_SIGNS[row.shown]} {row.engine:7} {row.what:{width}} {row.why}".rstrip())
    failures = sorted({f"{one.test}[{one.engine}]: {one.reason}" for one in results if one.outcome == "failed"})
    for failure in failures:
        print(f"failed: {failure}")
    figures = {
        "gpu": device or None,
        "minutes": round(seconds / 60, 1),
        "tests_passed": sum(one.outcome == "passed" for one in results),
        "tests_failed": len(failures),
        "rows_shown": sum(row.shown is True for row in rows),
        "rows_failed": sum(row.shown is False for row in rows),
        "rows_not_run": sum(row.shown is None for row in rows),
    }
    print(f"{figures['tests_passed']} passed, {len(failures)} failed in {seconds:.0f}s")
    print(json.dumps(figures))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
