"""`echo`: each choice begins with its prompt, once."""

from math import isnan

import pytest
from msgspec.structs import replace

from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.models import Model
from app.ids import PoolId, RequestId
from app.messages.events import Delta, TokenLogprob
from app.messages.job import Sampling
from app.openai.echo import Echo
from app.pools.schema import Pool
from app.telemetry import Meters
from app.tokenizing.tokenizer import Tokenizer, load_tokenizer
from tests.present import present

MODEL_DIR = Pool(model="mock", engine="mock").model_dir
ANSWER = Delta(RequestId("r"), 0, " answer", [9], finish="stop", stop="x")
LOGPROB = TokenLogprob(" answer", 9, -0.5)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(MODEL_DIR)


@pytest.fixture
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=False) for text in ("the first one", "another")]


def echoing(tokenizer: Tokenizer, prompts: list[list[int]], n: int = 1, *, only: bool = False) -> Echo:
    """The echo of a plan; `only`: no token was asked for."""
    model = Model("mock", (PoolId("p"),), (), None, tokenizer, 100, Meters("mock"))
    texts = [tokenizer.decode(prompt) for prompt in prompts]
    sampling = [Sampling(1, n=n)] * len(prompts)
    return Echo(GenerationPlan("cmpl-", model, prompts, sampling, 1, echo=texts, generates=not only))


def test_each_choice_begins_with_its_own_prompt(tokenizer: Tokenizer, prompts: list[list[int]]) -> None:
    """Choice i of prompt p has number p * n + i."""
    echo = echoing(tokenizer, prompts, 2)
    assert [echo(choice, ANSWER).text for choice in (3, 0, 2, 1)] == [
        "another answer", "the first one answer", "another answer", "the first one answer",
    ]  # fmt: skip


def test_only_the_first_delta_of_a_choice_has_the_prompt(tokenizer: Tokenizer, prompts: list[list[int]]) -> None:
    """Later deltas are left as they are."""
    echo = echoing(tokenizer, prompts)
    assert echo(0, ANSWER).text == "the first one answer"
    assert echo(0, ANSWER) is ANSWER
    assert echo(1, ANSWER).text == "another answer"


def test_without_an_answer_only_the_prompt_is_left(tokenizer: Tokenizer, prompts: list[list[int]]) -> None:
    """Engines generate at least one token; it is dropped."""
    d = echoing(tokenizer, prompts, only=True)(0, ANSWER)
    assert (d.text, d.tokens, d.finish, d.stop, d.logprobs) == ("the first one", [], "length", None, None)


def test_the_prompts_logprobs_come_before_the_answers(tokenizer: Tokenizer, prompts: list[list[int]]) -> None:
    """One for each token; the first, which nothing predicts, stands with NaN."""
    prompt = prompts[0]
    prompt_logprobs = [TokenLogprob(tokenizer.token_text(t), t, -1.0) for t in prompt[1:]]
    d = replace(ANSWER, logprobs=[LOGPROB], prompt_logprobs=[None, *prompt_logprobs])
    for only, rest in ((False, [LOGPROB]), (True, [])):
        logprobs = present(echoing(tokenizer, prompts, only=only)(0, d).logprobs)
        first, *others = logprobs
        assert (first.token, first.token_id) == (tokenizer.token_text(prompt[0]), prompt[0])
        assert isnan(first.logprob)
        assert others == [*prompt_logprobs, *rest]
