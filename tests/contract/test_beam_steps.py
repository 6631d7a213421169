"""The steps of our beam search find what transformers' search finds, on tiny models whose logprobs both get."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from app.messages.events import TokenLogprob
from app.messages.job import BeamSearch
from app.runner.beams import Beams, Rules, advanced

PROMPT = [3, 1, 4]
VOCABULARY = 24
CASES = ((1, (2,), 0), (2, (2,), 0), (4, (2,), 3), (4, (2, 5, 7), 0), (8, (2, 5, 7), 3), (3, (), 0))


def tiny_model(seed: int) -> LlamaForCausalLM:
    """A model that is sure of little, so that searches branch."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.6, bos_token_id=None, eos_token_id=None,
        pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def nexts(model: LlamaForCausalLM, beams: Beams) -> list[TokenLogprob]:
    """Each running beam's next token, as an engine tells of it."""
    prompts = torch.tensor([PROMPT + beam.tokens for beam in beams.running])
    with torch.inference_mode():
        rows = torch.log_softmax(model(prompts).logits[:, -1].float(), dim=-1)
    return [
        TokenLogprob("", 0, 0.0, [("", int(token), float(row[token])) for token in row.argsort(descending=True)])
        for row in rows
    ]


def ours(model: LlamaForCausalLM, rules: Rules, choices: int) -> list[list[int]]:
    beams = Beams()
    while not beams.over:
        beams = advanced(beams, nexts(model, beams), rules)
    return [one.beam.tokens for one in beams.finished[:choices]]


def theirs(model: LlamaForCausalLM, rules: Rules, choices: int) -> list[list[int]]:
    search, pad = rules.search, VOCABULARY - 1
    options: dict[str, Any] = {"min_new_tokens": rules.min_tokens} if rules.min_tokens else {}
    rows = model.generate(
        torch.tensor([PROMPT]),
        num_beams=search.width,
        num_return_sequences=choices,
        max_new_tokens=rules.max_tokens,
        do_sample=False,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
        eos_token_id=sorted(rules.ends) or None,
        pad_token_id=pad,
        **options,
    )
    answers = []
    for row in rows.tolist():
        tokens = row[len(PROMPT) :]
        ends = [i for i, token in enumerate(tokens) if token in rules.ends]
        answers.append(tokens[: ends[0] + 1] if ends else tokens)
    return answers


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads cost more than they bring for a model as small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.5, -1.0])
def test_the_answers_are_transformers_answers(length_penalty: float, early_stopping: Any) -> None:
    """Cases are several widths, with no token, one and several that end an answer, and with a minimum length."""
    lengths = set()
    for seed, (width, ends, least) in enumerate(CASES):
        model = tiny_model(seed)
        rules = Rules(BeamSearch(width, length_penalty, early_stopping), 8, least, frozenset(ends))
        answers = ours(model, rules, width)
        assert answers == theirs(model, rules, width), (width, ends, least)
        lengths |= {len(tokens) for tokens in answers}
    assert len(lengths) > 1  # searches ended at several lengths
