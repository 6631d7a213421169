"""The outcomes of tests, and whether they were expected."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree as ET

import yaml

EXPECTED = Path(__file__).with_name("expected.yaml")


@dataclass(frozen=True)
class Difference:
    """An expected failure. `tests`: a pattern of their names, as `file::class::test[parameter]`, with `*`.

    `says`: a regular expression that is in the first line of what each of them says.
    """

    reason: str
    tests: str = "*"
    says: str = ""

    def explains(self, name: str, failure: str) -> bool:
        """Whether a test's failure is this difference."""
        return fnmatchcase(name, self.tests) and re.search(self.says, _first_line(failure)) is not None

    def __str__(self) -> str:
        return f"{self.tests} {self.says}".strip()


@dataclass(frozen=True)
class Verdict:
    passed: int
    expected: int
    new: tuple[str, ...]  # names of tests that failed and should not, with what they said
    gone: tuple[str, ...]  # differences that explain no failure any more


def read_differences(suite: str) -> list[Difference]:
    entries = yaml.safe_load(EXPECTED.read_text()).get(suite) or []
    return [Difference(**one) for one in entries]


def read_junit(report: Path) -> dict[str, str]:
    """The reason why each test failed, by its name; empty: it passed. Leaves out those that were skipped."""
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        failure = next((child for kind in ("failure", "error") if (child := case.find(kind)) is not None), None)
        name = f"{case.get('classname', '').replace('.', '::')}::{case.get('name')}"
        outcomes[name] = "" if failure is None else (failure.get("message") or failure.text or "failed").strip()
    return outcomes


def judged(outcomes: Mapping[str, str], differences: Sequence[Difference]) -> Verdict:
    """Compares what happened with what was expected."""
    failures = {name: failure for name, failure in outcomes.items() if failure}
    explanations: dict[str, list[str]] = {
        name: [str(one) for one in differences if one.explains(name, failure)] for name, failure in failures.items()
    }
    all_matches = {one for matches in explanations.values() for one in matches}
    new = tuple(f"{name}: {_first_line(failures[name])}" for name, matches in explanations.items() if not matches)
    stale_differences = tuple(str(one) for one in differences if str(one) not in all_matches)
    return Verdict(len(outcomes) - len(failures), len(failures) - len(new), new, stale_differences)


def _first_line(failure: str) -> str:
    return failure.splitlines()[0][:300]
