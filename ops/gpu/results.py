"""Results of checks, by test and engine, and what they say of the feature list's rows."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ops.docs.features import Row, Theme

_PASSED, _FAILED, _SKIPPED = "passed", "failed", "skipped"


class Result(NamedTuple):
    test: str  # its node id without parameters
    engine: str  # in whose environment it ran
    outcome: str
    reason: str = ""


class Shown(NamedTuple):
    """A row of the list on one engine. `shown`: None if no check of it ran."""

    what: str
    engine: str
    shown: bool | None
    why: str = ""


def results_of(junit: Path, engine: str) -> list[Result]:
    """Results as pytest has written them, of the run in an engine's environment; of other engines nothing."""
    return [result for case in ET.parse(junit).iter("testcase") if (result := _result(case, engine))]


def _result(case: ET.Element, engine: str) -> Result | None:
    name = case.get("name", "")
    if case.find("skipped") is not None:
        outcome, element = _SKIPPED, case.find("skipped")
    else:
        failure = case.find("failure")
        element = failure if failure is not None else case.find("error")
        outcome = _PASSED if element is None else _FAILED
    parameters = re.split(r"[\[\]-]", name)[1:]
    if outcome == _SKIPPED or (_ENGINES & {*parameters} and engine not in parameters):
        return None
    path = case.get("classname", "").replace(".", "/")
    reason = "" if element is None else (element.get("message") or "").strip().partition("\n")[0][:200]
    return Result(f"{path}.py::{name.partition('[')[0]}", engine, outcome, reason)


_ENGINES = frozenset({"vllm", "sglang", "trtllm"})


def rows_shown(themes: Iterable[Theme], results: Iterable[Result], lacks: Mapping[str, str]) -> list[Shown]:
    """Tells of each row that only a GPU shows, on each of its engines. `lacks`: why engines didn't run."""
    by_test: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        by_test.setdefault((result.test, result.engine), []).append(result)
    return [
        _shown(row, engine, by_test, lacks)
        for theme in themes
        for row in theme.rows
        for engine in _on_gpu(row)
    ]  # fmt: skip


def _on_gpu(row: Row) -> list[str]:
    """The engines on which a check of `tests/gpu` shows the row."""
    if not any(test.startswith("tests/gpu/") for test in row.tests):
        return []
    return [engine for engine, state in row.states.items() if state.word == "gpu" and engine in _ENGINES]


def _shown(row: Row, engine: str, by_test: Mapping[tuple[str, str], list[Result]], lacks: Mapping[str, str]) -> Shown:
    if engine in lacks:
        return Shown(row.what, engine, None, lacks[engine])
    results = [one for test in row.tests for one in by_test.get((test, engine), ())]
    failures = [one for one in results if one.outcome == _FAILED]
    if failures:
        return Shown(row.what, engine, False, f"{failures[0].test.partition('::')[2]}: {failures[0].reason}")
    return Shown(row.what, engine, True) if results else Shown(row.what, engine, None, "no check of it ran")
