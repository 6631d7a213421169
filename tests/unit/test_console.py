"""The console's and `xylem top`'s views of the fleet's data."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from app.api.console.fleet_view import fleet_view
from app.api.console.prefix_view import Node, tree
from app.cli.top import shown
from app.dispatch.fleet.loads import ENTRY
from app.ids import PoolId
from app.kv.blocks import HASH_BYTES
from app.kv.groups import grids_of
from app.messages.lease import EngineState, Grid, Lease, Load
from tests.jobs import POOL
from tests.leases import changed, worker
from tests.models import mock

GRIDS = {POOL: Grid(16, 16)}
STATIC = Path(__file__).parents[2] / "app/api/console/static"


def prompt(text: str) -> bytes:
    """A block of its own for each beginning of the text."""
    return b"".join(text[: i + 1].rjust(HASH_BYTES, "_").encode() for i in range(len(text)))


def names(nodes: Sequence[Node]) -> list[Any]:
    return [[node.last.decode().strip("_"), node.prompts, *names(node.longer)] for node in nodes]


def test_the_tree_has_what_prompts_share_and_no_more() -> None:
    """Text that only one prompt has is no shared prefix; the prefix that saves most comes first."""
    prompts = [prompt(text) for text in ("abcdX", "abcdY", "abe", "abf", "q", "q", "alone")]
    assert names(tree(prompts)) == [["a", 5, ["ab", 4, ["abcd", 2]]], ["q", 2]]
    assert tree([]) == tree([b"", b""]) == tree([prompt("x")]) == []


@given(st.lists(st.text("ab", max_size=6), max_size=12))
def test_each_node_of_a_tree_counts_the_prompts_that_begin_so(texts: list[str]) -> None:
    prompts = [prompt(text) for text in texts]
    for node in (node for root in tree(prompts) for node in root.all()):
        assert node.prompts == sum(
            node.last in (p[i : i + HASH_BYTES] for i in range(0, len(p), HASH_BYTES)) for p in prompts
        )
        assert node.prompts > 1
        assert all(longer.blocks > node.blocks for longer in node.longer)
        assert len({longer.last for longer in node.longer}) == len(node.longer)


def lease(name: str, **more: Any) -> Lease:
    about = worker(name, total_blocks=100, max_running=4, ranks=2, kv_events=True)
    return Lease(about, Load(3, 1, 50, 10), caches=[7, 8], **more)


def test_a_worker_is_shown_with_all_its_ranks_together() -> None:
    entry = ENTRY.pack(2, 20, 300, 1, 4, 1, 5, 0.0)
    pools = {POOL: mock()}
    loads = {b"one": entry, b"one.1": entry, b"two": entry}
    leases = [lease("one"), lease("two", state=EngineState(asleep=1))]
    (pool,) = fleet_view(pools, GRIDS, leases, loads, {7: 11, 8: 22}, waiting={mock().model: 3})
    one, two = pool["workers"]
    assert pool["held"] == 3
    assert (one["seats"], one["blocks"]) == (8, {"total": 200, "held": 50, "lent": 10, "cached": 33})
    assert one["reserved"] == {
        "requests": 6, "blocks": 40, "without_first_token": 2, "tokens_to_compute": 600, "blocks_to_pull": 8,
    }  # fmt: skip
    assert (one["state"], two["state"], two["reserved"]["requests"]) == ("ready", "asleep", 3)
    (unknown,) = fleet_view(pools, GRIDS, [lease("one")], {}, None, waiting={})
    assert unknown["workers"][0]["blocks"]["cached"] is None, "the index is away"


def test_a_worker_of_which_nobody_knows_what_its_caches_hold_is_shown_so() -> None:
    """Its engine tells what can't be placed, or its blocks are not those that prompts are hashed by."""
    pools, hybrid = {POOL: mock()}, Grid(16, 16, everywhere=False)
    base_lease = lease("one")
    others = [
        replace(base_lease, left_out=True),
        *(changed(base_lease, **one) for one in ({"unindexed": "so it is"}, {"grid": Grid(32, 32)}, {"grid": hybrid})),
    ]
    (pool,) = fleet_view(pools, GRIDS, [base_lease, *others], {}, {7: 11}, waiting={})
    assert [worker["by_load"].partition(":")[0] for worker in pool["workers"]] == [
        "",
        "most of this engine's KV events can't be placed",
        "this engine's KV events can't be placed (so it is)",
        *["its KV blocks differ from those of most workers of its pool"] * 2,
    ]
    (pool,) = fleet_view(pools, {POOL: hybrid}, [others[-1]], {}, {7: 11}, waiting={})
    (worker,) = pool["workers"]
    assert (worker["by_load"], worker["blocks"]["cached"]) == ("", None), "the index has some of its blocks only"


@pytest.mark.parametrize("width", [80, 160])
def test_top_shows_each_worker_in_a_line(width: int) -> None:
    pools = {POOL: mock(), PoolId("empty"): mock(model="other")}
    requests = [
        {"id": "a", "outcome": "ok", "prompt_tokens": 5, "first_token_s": 0.25, "ended_s": 1.5},
        {"id": "b", "state": "answering", "workers": ["one"], "prompt_tokens": 6},
    ]
    view = fleet_view(pools, GRIDS | grids_of(pools), [lease("one")], {}, {7: 11}, waiting={mock().model: 3})
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(shown({"replica": "r", "in_flight": 1, "held": 0, "pools": view, "requests": requests}))
    lines = capture.get().splitlines()
    (worker,) = (line for line in lines if line.startswith("one "))
    assert "3/8 +1" in worker
    assert any(line.startswith(POOL) and line.rstrip().endswith(", 3 waiting for room") for line in lines)
    assert "50/200 (10 kept)" in worker
    assert any(line.startswith("a ") and "1.500 s" in line for line in lines)
    assert any("answering one" in line for line in lines)


def test_pages_name_only_files_that_exist_and_no_address_elsewhere() -> None:
    """Nothing is put into HTML: a text is never markup."""
    files = {file.name: file.read_text() for file in STATIC.iterdir()}
    assert {"index.html", "console.js", "console.css", "icon.svg"} <= files.keys()
    for name, text in files.items():
        plain = text.replace("http://www.w3.org/2000/svg", "")
        assert "://" not in plain, name
        assert "innerHTML" not in text, name
        for part in text.split("/console/static/")[1:]:
            assert part.split('"')[0] in files, (name, part[:30])
        for part in text.split('from "./')[1:]:
            assert part.split('"')[0] in files, (name, part[:30])


def test_all_that_play_imports_is_loaded_at_once() -> None:
    """A module that the page names only in another one is asked for a round trip later."""
    imported_names, pending_names = set(), ["console.js"]
    while pending_names:
        text = (STATIC / pending_names.pop()).read_text()
        new = {part.split('"')[0] for part in text.split('from "./')[1:]} - imported_names
        imported_names |= new
        pending_names += new
    page = (STATIC / "index.html").read_text()
    assert {part.split('"')[0] for part in page.split('modulepreload" href="/console/static/')[1:]} == imported_names
