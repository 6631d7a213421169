"""The simulated logits and how sampling parameters act on them."""

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import app.engines.mock
from app.engines.mock.sampler import Sampler, prompt_logprobs
from app.engines.mock.vocabulary import Vocabulary
from app.engines.stops import StopScanner
from app.messages.job import Sampling
from app.tokenizing.tokenizer import load_tokenizer

MODEL = Path(app.engines.mock.__file__).parent / "model"
PROMPT = list(range(300, 340))


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(load_tokenizer(MODEL))


def sample(vocabulary: Vocabulary, count: int, prompt: list[int] = PROMPT, seed: int = 1, **settings: Any) -> list[int]:
    sampler = Sampler(vocabulary, prompt, Sampling(max_tokens=count, **settings), seed)
    tokens = []
    for _ in range(count):
        tokens.append(sampler.choose())
        sampler.append(tokens[-1])
    return tokens


def test_the_text_of_an_answer_encodes_to_its_tokens(vocabulary: Vocabulary) -> None:
    """A client that sends an answer back finds it in the prefix cache."""
    tokens = sample(vocabulary, 200)
    text = "".join(vocabulary.texts[token] for token in tokens)
    assert vocabulary.tokenizer.encode(text) == tokens
    assert vocabulary.tokenizer.decode(tokens) == text


def test_a_resumed_answer_goes_on_as_it_would_have(vocabulary: Vocabulary) -> None:
    """A token depends on what is before it, not on where the prompt ended."""
    tokens = sample(vocabulary, 30)
    assert sample(vocabulary, 20, PROMPT + tokens[:10]) == tokens[10:]


def test_another_prompt_gets_another_answer(vocabulary: Vocabulary) -> None:
    """Even one that ends alike."""
    assert sample(vocabulary, 8) != sample(vocabulary, 8, [299, *PROMPT[1:]])


def test_logits_that_nothing_changes_choose_the_same_both_ways(vocabulary: Vocabulary) -> None:
    """The quick way and the one for biases and penalties are one distribution."""
    settings: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "top_k": 12, "min_p": 0.02}
    assert sample(vocabulary, 100, **settings) == sample(vocabulary, 100, logit_bias={5: 0.0}, **settings)


def test_sampling_follows_the_logits(vocabulary: Vocabulary) -> None:
    """Each rank is e^-0.5 as likely as the one before, at temperature 1."""
    ranks: Counter[int] = Counter()
    for seed in range(4000):
        sampler = Sampler(vocabulary, PROMPT, Sampling(max_tokens=1), seed)
        ranks[vocabulary.wheel.index(sampler.choose())] += 1
    counts = [count for _, count in sorted(ranks.items())]
    assert counts[1] / counts[0] == pytest.approx(0.607, rel=0.15)
    assert counts[2] / counts[1] == pytest.approx(0.607, rel=0.15)


def test_a_low_temperature_narrows_the_choice(vocabulary: Vocabulary) -> None:
    """Temperature scales the logits."""
    greedy = sample(vocabulary, 1, temperature=0.0)

    def agreement(temperature: float) -> int:
        return sum(sample(vocabulary, 1, seed=seed, temperature=temperature) == greedy for seed in range(300))

    assert agreement(0.1) > agreement(1.0) > agreement(2.0)


def test_top_k_and_top_p_and_min_p_keep_the_likeliest(vocabulary: Vocabulary) -> None:
    """None of them lets through what it should cut off."""
    cuts: list[tuple[dict[str, Any], int]] = [({"top_k": 3}, 3), ({"top_p": 0.6}, 2), ({"min_p": 0.5}, 2)]
    for cut, count in cuts:
        samples = {sample(vocabulary, 1, seed=seed, **cut)[0] for seed in range(200)}
        assert len(samples) == count


@pytest.mark.parametrize("penalty", [{"presence_penalty": 2.0}, {"frequency_penalty": 0.5}])
def test_penalties_count_what_was_said(vocabulary: Vocabulary, penalty: dict[str, Any]) -> None:
    """The one said less of two equally likely tokens comes next."""
    settings: dict[str, Any] = {"temperature": 0.0, "logit_bias": {10: 60.0, 11: 59.9}}
    assert set(sample(vocabulary, 4, **settings)) == {10}
    assert sample(vocabulary, 2, **settings, **penalty) == [10, 11]


def test_a_repetition_penalty_counts_the_prompt_too(vocabulary: Vocabulary) -> None:
    """Unlike the other two."""
    bias = {PROMPT[0]: 60.0, 11: 50.0}
    assert sample(vocabulary, 1, temperature=0.0, logit_bias=bias, repetition_penalty=1.5) == [11]


def test_logprobs_of_a_forced_token_are_the_models_own(vocabulary: Vocabulary) -> None:
    """Logprobs are those before any bias, as with vLLM."""
    sampler = Sampler(vocabulary, PROMPT, Sampling(max_tokens=1, logit_bias={7: 100.0}), 1)
    token_logprob = sampler.logprob(sampler.choose(), 20)
    assert token_logprob.token_id == 7
    assert token_logprob.logprob < min(entry[2] for entry in token_logprob.top)
    assert all(a[2] > b[2] for a, b in pairwise(token_logprob.top))


def test_prompt_logprobs_agree_with_those_of_sampling(vocabulary: Vocabulary) -> None:
    """A token that was likely when generated is likely when read."""
    tokens = sample(vocabulary, 5, temperature=0.0)
    sampler = Sampler(vocabulary, PROMPT, Sampling(max_tokens=1, temperature=0.0), 1)
    assert prompt_logprobs(vocabulary, PROMPT + tokens, 3)[len(PROMPT)] == sampler.logprob(sampler.choose(), 3)


@given(
    text=st.text("abc", min_size=1, max_size=40),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    include=st.booleans(),
    seed=st.integers(0, 100),
)
def test_stops_are_found_however_the_text_is_cut(text: str, stops: list[str], include: bool, seed: int) -> None:
    """The result depends on the text alone, and what went out is never taken back."""
    draw = random.Random(seed)
    scanner, out, stop_string, rest = StopScanner(stops, include=include), "", None, text
    while rest and stop_string is None:
        size = draw.randint(1, 5)
        piece, stop_string = scanner.push(rest[:size])
        out, rest = out + piece, rest[size:]
    if stop_string is None:
        out += scanner.flush()
        assert out == text
        assert not any(stop in text for stop in stops)
    else:
        end = len(out) if include else len(out) + len(stop_string)
        assert text[:end].endswith(stop_string)
        assert text.startswith(out)
        assert end == min(text.index(stop) + len(stop) for stop in stops if stop in text)
