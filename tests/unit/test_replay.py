"""Conversion of a trace into load: prompts, order, bounds."""

import asyncio
import json

import httpx
import pytest

from app.cli.client import ApiError
from app.cli.replaying.player import Player, chains
from app.cli.replaying.prompts import Measure, Prompts, sample
from app.cli.replaying.sending import Outcome, Sender
from app.cli.replaying.summary import summary
from app.cli.trace import Request

PLAIN = Measure(1.0, 20.0)


def words(request: Request, number: int = 0, measure: Measure = PLAIN, seed: str = "s") -> list[str]:
    return Prompts(measure, seed).text(request, number).split()


def common(a: list[str], b: list[str]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("per_word", [1.0, 1.37, 4.2, 0.9])
@pytest.mark.parametrize("tokens", [100, 512, 513, 5000, 70_001])
def test_a_prompt_has_the_words_for_its_tokens(per_word: float, tokens: int) -> None:
    request = Request(tokens, 1, 0, list(range(-(-tokens // 512))))
    count = len(words(request, measure=Measure(per_word, 20.0)))
    assert count * per_word + 20 == pytest.approx(tokens, abs=per_word)


def test_prompts_share_the_text_of_the_blocks_that_they_share() -> None:
    one = words(Request(1536, 1, 0, [0, 1, 2]))
    assert common(one, words(Request(1600, 1, 0, [0, 1, 3, 4]))) in range(1024, 1030)
    assert common(one, words(Request(1100, 1, 0, [0, 1, 5]))) in range(1024, 1030)
    assert common(one, words(Request(1536, 1, 0, [6, 7, 8]))) < 6
    assert words(Request(1536, 1, 9, [0, 1, 2]), number=4) == one


def test_prompts_without_ids_share_nothing_and_another_seed_says_something_else() -> None:
    request = Request(1000, 1, 0)
    assert common(words(request, 0), words(request, 1)) < 6
    assert common(words(request, 0), words(request, 0, seed="t")) < 6


def test_a_prompt_that_is_shorter_than_the_template_has_one_word() -> None:
    assert len(words(Request(5, 1, 0, [0]))) == 1


def test_a_tokenizer_is_measured_by_two_prompts() -> None:
    assert Measure.of((64, 148), (512, 1044)) == Measure(2.0, 20.0)
    assert sample(4).startswith(sample(1))
    with pytest.raises(ValueError, match="no more tokens"):
        Measure.of((64, 5), (512, 5))


def test_only_requests_without_a_time_follow_an_answer() -> None:
    first, second, then, other = (
        Request(1, 1, 900, session_id="a"), Request(2, 1, 500, session_id="b"), Request(3, 1, session_id="a", delay=5),
        Request(4, 1, 950, session_id="a"),
    )  # fmt: skip
    assert chains([first, second, then, other]) == [
        (0, [(1, second)]),
        (400, [(0, first), (2, then)]),
        (450, [(3, other)]),
    ]


def _events(usage: dict[str, object]) -> str:
    chunks = [{"choices": [{"delta": {"role": "assistant"}}]}, {"choices": [{"delta": {"content": "x"}}]}]
    chunks.append({"choices": [], "usage": usage})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + ": a comment\n\ndata: [DONE]\n\n"


USAGE = {"prompt_tokens": 90, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 30}}


def client(answer: object) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://test", transport=httpx.MockTransport(answer))  # type: ignore[arg-type]


def player(sender: Sender, most: int = 1000) -> Player:
    return Player(sender, Prompts(PLAIN, "s"), speed=1000, seconds=60, most=most)


async def test_a_replay_counts_what_the_server_says() -> None:
    async with client(lambda _: httpx.Response(200, text=_events(USAGE))) as http:
        replay_player = player(Sender(http, "m"))
        requests = [Request(100, 8, 0, [0], "a"), Request(100, 8, None, [0], "a", 1), Request(100, 8, 2, [1])]
        await replay_player.run(chains(requests))
    results = summary(replay_player, 3)
    assert results["requests"] == {"planned": 3, "sent": 3, "answered": 3, "failed": 0}
    assert results["prompt_tokens"] == {"wanted": 300, "measured": 270}
    assert results["answer_tokens"] == {"wanted": 24, "measured": 24}
    assert results["cached_share"] == pytest.approx(1 / 3, abs=1e-3)


async def test_a_server_that_refuses_everything_ends_the_replay_with_its_reason() -> None:
    refusal = {"error": {"message": "the context is too long"}}
    async with client(lambda _: httpx.Response(400, json=refusal)) as http:
        replay_player = player(Sender(http, "m"))
        await replay_player.run(chains([Request(10, 1, i) for i in range(5000)]))
    assert "failed one after the other" in replay_player.stopped
    assert replay_player.errors["the context is too long"] >= 100
    assert len(replay_player.outcomes) < 1000


async def test_a_server_that_does_not_keep_up_ends_the_replay() -> None:
    async def never(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async with client(never) as http:
        replay_player = player(Sender(http, "m"), most=5)
        await replay_player.run(chains([Request(10, 1, i) for i in range(50)]))
    assert "5 requests are in flight" in replay_player.stopped
    assert (len(replay_player.outcomes), replay_player.in_flight) == (5, 0)
    assert summary(replay_player, 50)["requests"]["failed"] == 5


@pytest.mark.parametrize(
    "text", ["data: not JSON\n\n", 'data: {"error": {"message": "broken"}}\n\n', "data: [DONE]\n\n"]
)
async def test_a_broken_answer_is_a_failed_request(text: str) -> None:
    outcome = Outcome(10, 1, 0.0)
    async with client(lambda _: httpx.Response(200, text=text)) as http:
        await Sender(http, "m").send("hello", outcome, 0.0)
    assert outcome.error


async def test_a_server_that_does_not_know_ignore_eos_is_asked_without() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if "ignore_eos" in body:
            return httpx.Response(422, json={"error": {"message": "unknown: ignore_eos"}})
        tokens = len(body["messages"][0]["content"].split()) + 20
        return httpx.Response(200, json={"usage": {"prompt_tokens": tokens}})

    async with client(answer) as http:
        sender = Sender(http, "m")
        assert await sender.measure() == PLAIN
        assert not sender.keeps_lengths


async def test_a_server_that_counts_no_tokens_is_refused() -> None:
    async with client(lambda _: httpx.Response(200, json={"choices": []})) as http:
        with pytest.raises(ApiError, match="no more tokens"):
            await Sender(http, "m").measure()
