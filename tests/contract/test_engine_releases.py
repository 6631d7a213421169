"""Names in the installed engines: adapters deal with each, or ignore it for a reason, so no release adds any unseen."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from ops.engines.known import DECIDE, ignored, known, undecided
from ops.engines.surface import PARTS, surface

# The least that each has, where a part's code could move to where nothing is found.
LEAST = {
    "tool parsers": 40,
    "reasoning parsers": 25,
    "sampling parameters": 25,
    "metrics": 100,
    "kinds of KV blocks": 8,
}


@pytest.fixture(params=PARTS)
def engine(request: pytest.FixtureRequest) -> str:
    if find_spec(request.param) is None:
        pytest.skip(f"no {request.param}")
    return str(request.param)


@pytest.fixture
def found(engine: str) -> dict[str, set[str]]:
    spec = find_spec(engine)
    assert spec is not None
    assert spec.submodule_search_locations
    return surface(Path(spec.submodule_search_locations[0]), engine)


def test_each_name_of_an_installed_engine_is_dealt_with_or_ignored_for_a_reason(
    engine: str, found: dict[str, set[str]]
) -> None:
    assert {part for part, names in found.items() if len(names) < LEAST.get(part, 3)} == set()
    assert undecided(engine, found) == []


def test_what_is_ignored_is_there_and_is_not_dealt_with(engine: str, found: dict[str, set[str]]) -> None:
    """A reason would otherwise outlive what it was given for."""
    for part, reasons in ignored(engine).items():
        assert reasons.keys() <= found[part] - known(engine, part, found[part])


@pytest.mark.parametrize(
    ("part", "name", "advice"),
    [
        ("sampling parameters", "temperament", "pass it in the adapter's convert.py"),
        ("fields of KV events", "BlockStored.salted_by", "read it in app/kv/events.py"),
        ("metrics", "vllm:kv_cache_mood", "read it in the adapter"),
        ("kinds of KV blocks", "RING_ATTENTION", "name what its layers see"),
        ("tool parsers", "zzzz9", "add its format or an alias"),
    ],
)
def test_a_new_name_is_told_with_what_there_is_to_decide(part: str, name: str, advice: str) -> None:
    (sentence,) = undecided("vllm", {part: {name}})
    assert sentence.startswith(f"vllm has new {part}: {name}. For each, {advice}")
    assert sentence.endswith("or give a reason to ignore it in ops/engines/ignored.yaml.")


def test_each_part_says_where_it_is_decided_on() -> None:
    assert {part for parts in PARTS.values() for part in parts} == DECIDE.keys()
