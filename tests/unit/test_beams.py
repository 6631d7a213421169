"""Beam search: one step of it, what a request means, costs and is refused for, and which workers may have it.

`tests/contract/test_beam_steps.py` holds the steps to transformers'.
"""

import asyncio
from typing import Any

import orjson
import pytest

from app.messages.events import TokenLogprob
from app.messages.job import BeamSearch, Sampling
from app.openai import chat, completions
from app.openai.beams import MOST_BEAMS
from app.openai.schemas import CompletionRequest
from app.routing.needs import unmet_need
from app.runner.beams import Beams, Rules, advanced
from tests.jobs import POOL, in_flight, job, placing
from tests.leases import candidate, worker
from tests.models import asking, mock, models_of
from tests.refusals import refused
from tests.stack import ROOT

TEMPLATE = ROOT / "tests/chaos/template.jinja"  # one that knows tools
ENDS = frozenset({9})
ASKED = {"model": "m", "use_beam_search": True, "max_tokens": 8}
TEXT = ASKED | {"prompt": "Hello you"}
CHAT = ASKED | {"messages": [{"role": "user", "content": "Hello you"}]}
SEARCH = Sampling(8, beams=BeamSearch(4))


def after(*tokens: tuple[int, float]) -> TokenLogprob:
    """Logprobs of a next token, as an engine tells them."""
    return TokenLogprob("", tokens[0][0], tokens[0][1], [(str(token), token, logprob) for token, logprob in tokens])


def rules(width: int = 2, **fields: Any) -> Rules:
    return Rules.of(Sampling(**{"max_tokens": 8} | fields, beams=BeamSearch(width)), ENDS, room=100)


def tokens_of(beams: Beams) -> list[list[int]]:
    return [beam.tokens for beam in beams.running]


def test_the_likeliest_continuations_of_all_beams_go_on() -> None:
    """All may be one beam's, and each has its tokens' logprobs."""
    beams = advanced(Beams(), [after((1, -0.1), (2, -3.0))], rules())
    assert tokens_of(beams) == [[1], [2]]
    beams = advanced(beams, [after((3, -0.5), (4, -0.6)), after((5, 0.0), (6, -1.0))], rules())
    assert tokens_of(beams) == [[1, 3], [1, 4]]
    assert beams.running[1].logprob == pytest.approx(-0.7)
    assert [(lp.token, round(lp.logprob, 3)) for lp in beams.running[1].logprobs] == [("1", -0.1), ("4", -0.6)]


def test_an_end_counts_only_among_the_likeliest() -> None:
    """Others go on in its place; one that is less likely than as many as there are beams is no answer."""
    beams = advanced(Beams(), [after((1, -0.1), (9, -0.2), (2, -0.3))], rules())
    assert [(one.beam.tokens, one.finish) for one in beams.finished] == [([9], "stop")]
    assert tokens_of(beams) == [[1], [2]]
    beams = advanced(Beams(), [after((1, -0.1), (2, -0.2), (9, -0.3))], rules())
    assert (tokens_of(beams), beams.finished) == ([[1], [2]], ())


def test_the_longest_answers_end_with_length() -> None:
    beams = advanced(Beams(), [after((1, -0.1), (9, -0.2), (2, -0.3))], rules(max_tokens=1))
    assert [(one.beam.tokens, one.finish) for one in beams.finished] == [([1], "length"), ([9], "stop")]
    assert beams.over
    assert rules(max_tokens=8).max_tokens == 8
    assert Rules.of(SEARCH, ENDS, room=3).max_tokens == 3


def test_nothing_ends_an_answer_before_its_least_length_or_where_ends_are_ignored() -> None:
    nexts = [after((9, -0.1), (1, -0.2), (2, -0.3))]
    assert tokens_of(advanced(Beams(), nexts, rules(min_tokens=1))) == [[1], [2]]
    assert tokens_of(advanced(Beams(), nexts, rules(ignore_eos=True))) == [[9], [1]]
    beams = advanced(Beams(), nexts, rules(ignore_eos=True, stop_token_ids=(1,)))
    assert [one.beam.tokens for one in beams.finished] == [[1]]


def plan(fields: dict[str, Any]) -> Any:
    """The plan of a request."""
    understand = chat.understand if "messages" in fields else completions.understand
    return asyncio.run(
        understand(
            asking(models_of(pool=mock(model="m", dialect="hermes", chat_template=TEMPLATE))), orjson.dumps(fields)
        )
    )[1]


@pytest.mark.parametrize("body", [TEXT, CHAT])
def test_a_request_says_how_wide_the_search_is(body: dict[str, Any]) -> None:
    """`n` is the width, as in vLLM, unless `best_of` is: then `n` of its answers are shown. Nothing is drawn."""
    [sampling] = plan(body | {"n": 3, "temperature": 0.7, "seed": 4, "early_stopping": "never"}).sampling
    assert sampling.beams == BeamSearch(3, 1.0, "never")
    assert (sampling.n, sampling.seats, sampling.temperature, sampling.seed) == (3, 3, 0.0, None)
    [sampling] = plan(body | {"n": 2, "best_of": 5, "length_penalty": 0}).sampling
    assert (sampling.n, sampling.seats, sampling.beams) == (2, 5, BeamSearch(5, 0.0))
    assert plan(body | {"use_beam_search": False, "best_of": 1, "n": 2}).sampling[0].beams is None


def test_each_beam_counts_as_a_choice_for_limits() -> None:
    assert plan(TEXT | {"prompt": ["a", "b"], "best_of": 4}).answer_tokens == 2 * 4 * 8
    assert plan(TEXT | {"use_beam_search": None, "n": 4}).answer_tokens == 4 * 8


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize("body", [TEXT, CHAT])
@pytest.mark.parametrize(("fields", "param"), [
    ({"stream": True}, "stream"),
    ({"top_p": 0.5}, "top_p"),
    ({"top_k": 4}, "top_k"),
    ({"min_p": 0.1}, "min_p"),
    ({"presence_penalty": 1}, "presence_penalty"),
    ({"frequency_penalty": -1}, "frequency_penalty"),
    ({"repetition_penalty": 1.1}, "repetition_penalty"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"stop": "x"}, "stop"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"guided_regex": "a"}, "guided_regex"),
    ({"n": 4, "best_of": 3}, "best_of"),
    ({"best_of": MOST_BEAMS + 1}, "best_of"),
    ({"n": MOST_BEAMS + 1}, "n"),
    ({"use_beam_search": False, "best_of": 2}, "best_of"),
    ({"use_beam_search": None, "length_penalty": 2}, "length_penalty"),
    ({"use_beam_search": None, "early_stopping": True}, "early_stopping"),
])  # fmt: skip
def test_what_a_search_cannot_heed_is_refused(body: dict[str, Any], fields: dict[str, Any], param: str) -> None:
    with refused(param):
        plan(body | fields)


@pytest.mark.parametrize(("body", "param"), [
    (TEXT | {"echo": True}, "echo"),
    (TEXT | {"prompt_embeds": "x"}, "prompt_embeds"),
    (CHAT | {"response_format": {"type": "json_object"}}, "response_format"),
    (CHAT | {"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
])  # fmt: skip
def test_the_field_of_one_endpoint_is_refused(body: dict[str, Any], param: str) -> None:
    with refused(param):
        plan(body)


def test_a_models_own_defaults_do_not_count() -> None:
    """Such defaults are for answers that are drawn."""
    body = CompletionRequest(**TEXT).filled({"top_p": 0.5, "top_k": 3, "repetition_penalty": 1.3})
    sampling = body.sampling(8, logprobs=2)
    assert (sampling.top_p, sampling.top_k, sampling.repetition_penalty, sampling.logprobs) == (1.0, 0, 1.0, 2)


def test_only_workers_that_search_have_it() -> None:
    """One of an older version would answer as if nothing had been said."""
    searches, old_worker = worker(beams=True), worker()
    assert unmet_need(job(sampling=SEARCH), [searches, old_worker], {}) is None
    assert unmet_need(job(sampling=SEARCH), [], {}) is None
    error = unmet_need(job(sampling=SEARCH), [old_worker], {})
    assert error is not None
    assert (error.status, error.param) == (400, "use_beam_search")
    inflight = in_flight(job(sampling=SEARCH))
    fits = placing([inflight], {POOL: mock()}, {}).fits(inflight)
    assert fits is not None
    assert [fits(candidate(beams=beams)) for beams in (True, False)] == [True, False]
