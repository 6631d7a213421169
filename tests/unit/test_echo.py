"""`echo`: each choice begins with its prompt, once."""

from math import isnan

from msgspec.structs import replace

from app.dispatch.generation_plan import GenerationPlan
from app.ids import RequestId
from app.messages.events import Delta, TokenLogprob
from app.messages.job import Sampling
from app.openai.echo import Echo
from tests.models import model
from tests.present import present

ANSWER = Delta(RequestId("r"), 0, " answer", [9], finish="stop", stop="x")
LOGPROB = TokenLogprob(" answer", 9, -0.5)


TEXTS = ["the first one", "another"]
MODEL = model()
PROMPTS = [MODEL.tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]


def echoing(n: int = 1, *, only: bool = False) -> Echo:
    """The echo of a plan; `only`: no token was asked for."""
    sampling = [Sampling(1, n=n)] * len(PROMPTS)
    return Echo(GenerationPlan("cmpl-", MODEL, PROMPTS, sampling, 1, echo=TEXTS, generates=not only))


def test_each_choice_begins_with_its_own_prompt() -> None:
    """Choice i of prompt p has number p * n + i."""
    echo = echoing(2)
    texts = [echo(choice, ANSWER).text for choice in (3, 0, 2, 1)]
    assert texts == ["another answer", "the first one answer"] * 2


def test_only_the_first_delta_of_a_choice_has_the_prompt() -> None:
    """Later deltas are left as they are."""
    echo = echoing()
    assert echo(0, ANSWER).text == "the first one answer"
    assert echo(0, ANSWER) is ANSWER
    assert echo(1, ANSWER).text == "another answer"


def test_without_an_answer_only_the_prompt_is_left() -> None:
    """Engines generate at least one token; it is dropped."""
    d = echoing(only=True)(0, ANSWER)
    assert (d.text, d.tokens, d.finish, d.stop, d.logprobs) == ("the first one", [], "length", None, None)


def test_the_prompts_logprobs_come_before_the_answers() -> None:
    """One for each token; the first, which nothing predicts, stands with NaN."""
    prompt, text_of = PROMPTS[0], MODEL.tokenizer.token_text
    prompt_logprobs = [TokenLogprob(text_of(t), t, -1.0) for t in prompt[1:]]
    d = replace(ANSWER, logprobs=[LOGPROB], prompt_logprobs=[None, *prompt_logprobs])
    for only, rest in ((False, [LOGPROB]), (True, [])):
        logprobs = present(echoing(only=only)(0, d).logprobs)
        first, *others = logprobs
        assert (first.token, first.token_id) == (text_of(prompt[0]), prompt[0])
        assert isnan(first.logprob)
        assert others == [*prompt_logprobs, *rest]
