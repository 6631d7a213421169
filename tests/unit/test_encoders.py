"""Choice of the workers that encode a prompt's pictures, and the memory in which they keep them."""

from typing import Any

from app.ids import WorkerId
from app.kv.pages import Pages
from app.messages.handoff import EmbeddingHandle
from app.messages.lease import EngineState, Speeds
from app.messages.media import Media
from app.routing.candidates import Candidate
from app.routing.encoders import Encoded, choose_encoders
from tests.leases import candidate


def place(name: str, weights: str = "", **fields: Any) -> Candidate:
    usual = {"role": "encode", "total_blocks": 0, "max_running": 4, "media": ["image"], "speeds": Speeds(100.0)}
    return candidate(name, state=EngineState(weights=weights), **usual, **fields)


def pictures(*lengths: int) -> list[Media]:
    return [Media("image", f"{number:064}", (8, 8), 0, length) for number, length in enumerate(lengths)]


def handle(worker: str, weights: str = "") -> EmbeddingHandle:
    return EmbeddingHandle(WorkerId(worker), "agent", b"", [0], 64, 1, 1, "float32", 0, weights)


def chosen(media: list[Media], *places: Candidate, encoded: Encoded | None = None, weights: str = "") -> dict[str, Any]:
    return {e.to.worker: e.media for e in choose_encoders(media, places, encoded or {}, "m", weights, 0.0)}


def test_pictures_are_spread_by_how_long_they_take() -> None:
    """The longest alone, the two others together; a worker with work gets less."""
    assert chosen(pictures(100, 40, 50), place("a"), place("b")) == {"a": (0,), "b": (1, 2)}
    assert chosen(pictures(100, 40, 50), place("a", tokens=500), place("b")) == {"b": (0, 1, 2)}


def test_a_picture_is_encoded_once_and_not_if_it_is() -> None:
    twice = [*pictures(100), *pictures(100, 40)]
    assert chosen(twice, place("a")) == {"a": (0, 2)}
    handles = {("m", twice[0].sha256): handle("a")}
    assert chosen(twice, place("a"), encoded=handles) == {"a": (2,)}
    assert chosen(twice[:2], place("a"), encoded=handles) == {}


def test_a_picture_whose_kv_is_cached_where_the_answer_is_computed_needs_no_rows() -> None:
    """All of it: some of its tokens would have to be computed otherwise."""
    media = [Media("image", f"{number:064}", (8, 8), offset, 40) for number, offset in enumerate((10, 60, 110))]
    for cached_tokens, expected_media in ((0, (0, 1, 2)), (49, (0, 1, 2)), (50, (1, 2)), (149, (2,)), (160, None)):
        choices = choose_encoders(media, [place("a")], {}, "m", "", 0.0, cached_tokens)
        assert [e.media for e in choices] == ([] if expected_media is None else [expected_media])


def test_what_a_dead_worker_or_other_weights_or_another_model_encoded_counts_for_nothing() -> None:
    media = pictures(100)
    for handles in ({("m", media[0].sha256): handle("dead")}, {("m", media[0].sha256): handle("a", "v2")}):
        assert chosen(media, place("a"), encoded=handles) == {"a": (0,)}
    assert chosen(media, place("a"), encoded={("other", media[0].sha256): handle("a")}) == {"a": (0,)}


def test_no_worker_that_can_is_no_error() -> None:
    media = pictures(100)
    for unable in (place("a", draining=True), place("a", requests=8), place("a", weights="v2")):
        assert chosen(media, unable) == {}
    assert chosen([Media("audio", "0", (9,), 0, 4)], place("a")) == {}
    assert chosen(media) == {}


def test_an_encoders_load_is_its_pictures_placeholders() -> None:
    [one] = choose_encoders(pictures(100, 40), [place("a")], {}, "m", "", 0.0)
    assert (one.to.tokens, one.to.blocks) == (140, 0)


def test_pages_keep_bytes_apart_and_are_used_again() -> None:
    pages = Pages(4 * 64, 64)
    first, second = pages.take(pages.needed(100)), pages.take(pages.needed(1))
    pages.write(first, bytes(range(100)))
    pages.write(second, b"x")
    assert pages.read(first, 100) == bytes(range(100))
    assert pages.free == 1
    pages.give_back(first)
    third = pages.take(3)
    pages.write(third, b"y" * 192)
    assert pages.read(second, 1) == b"x"
    assert pages.read(third, 192) == b"y" * 192
