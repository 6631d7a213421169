"""The API's knowledge of a model: how long prompts may be, alone and together."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import orjson
import pytest
from pydantic import ValidationError

from app.api.operations.health import _card
from app.api.state import ApiState
from app.dialects.names import find_dialect
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.models import Model
from app.dispatch.models.writing import Writing
from app.dispatch.placing.placement_queue import _round_size
from app.errors import PromptTooLong, RequestError, SettingsError
from app.ids import PoolId, RequestId
from app.openai.chat import chat_plan
from app.openai.completions import _plan
from app.openai.schemas import CompletionRequest
from app.pools.schema import Reasoning
from app.schemas.validation import parse
from app.tokenizing.tokenizer import Tokenizer
from tests import models
from tests.models import asking, mock, models_of
from tests.present import present
from tests.refusals import refused
from tests.unit.test_tools import TIME, chat

CONTEXT, TOGETHER = 10_000, 2**18
POOL = mock()


@pytest.fixture(scope="module")
def model() -> Model:
    return models.model("models", context_len=CONTEXT)


def plan(model: Model, **fields: object) -> GenerationPlan:
    body = parse(CompletionRequest, orjson.dumps({"model": "models", "max_tokens": 1, **fields}))
    return _plan(asking({"models": model}, {PoolId("p"): POOL}), body)


def test_a_text_that_cannot_fit_is_refused_with_what_is_known(model: Model) -> None:
    """The error is that for a prompt that is too long: the number of the text's tokens is not known."""
    with pytest.raises(PromptTooLong, match=r"maximum context length is 10000 tokens\. .* at least 4\d{4} tokens"):
        model.encode("a" * 10**6, "prompt")


def test_a_long_text_that_fits_has_the_tokens_that_it_always_had(model: Model) -> None:
    """Earlier checks of the text change nothing."""
    text = " " * 12 * CONTEXT
    assert model.encode(text, "prompt") == model.tokenizer.raw.encode(text).ids


def test_prompts_together_have_a_limit_of_their_own(model: Model) -> None:
    """26 of 10,000 tokens are about as many as there may be."""
    prompt = [5] * (CONTEXT - 1)
    assert len(plan(model, prompt=[prompt] * 26).prompts) == 26
    with pytest.raises(RequestError, match=str(TOGETHER)):
        plan(model, prompt=[prompt] * 27)


def test_an_echo_counts_with_each_of_its_choices(model: Model) -> None:
    """The answer has the prompt as often."""
    prompt = [5] * (CONTEXT - 1)
    assert plan(model, prompt=prompt, echo=True, n=26).echo is not None
    with pytest.raises(RequestError, match=str(TOGETHER)):
        plan(model, prompt=prompt, echo=True, n=27)
    assert GenerationBase(RequestId("r"), 0.0, plan(model, prompt=prompt, n=128)).choices == 128


def test_an_echo_shows_the_prompt_as_it_was_token_for_token(model: Model) -> None:
    ids = model.tokenizer.encode("<|im_start|>a<|im_end|>", add_special_tokens=False)
    assert plan(model, prompt=ids, echo=True).echo == ["<|im_start|>a<|im_end|>"]
    assert not plan(model, prompt=ids, echo=True, max_tokens=0).generates


def test_biases_go_along_with_each_prompt(model: Model) -> None:
    """Biases are counted over all prompts, therefore."""
    biases = {str(i): 1 for i in range(1024)}
    assert len(plan(model, prompt=[[5]] * 64, logit_bias=biases).prompts) == 64
    with refused("logit_bias"):
        plan(model, prompt=[[5]] * 65, logit_bias=biases)


def test_what_is_only_tokenised_may_be_longer_than_the_context(model: Model) -> None:
    """Clients ask for it to see what fits; it still has a bound."""
    assert len(model.count("a" * 100_000, add_special_tokens=True)) > CONTEXT
    for text in ("a b" * 10**6, "\u4e2d" * 100_000):
        with pytest.raises(RequestError, match=str(TOGETHER)):
            model.count(text, add_special_tokens=True)


@pytest.mark.parametrize(("prompts", "size"), [
    ([], 1), ([1], 1), ([1] * 64, 64), ([10**6], 1), ([10**6, 1], 1), ([1, 10**6], 1), ([2**17] * 3, 2),
])  # fmt: skip
def test_few_long_prompts_are_placed_at_once(prompts: list[int], size: int) -> None:
    """Short prompts are placed as many at once as there are."""
    assert _round_size(prompts) == size


def shown(model: Model) -> Writing:
    """The model's writing without the special tokens of its own vocabulary."""
    assert model.writing.dialect is not None
    return model.writing._replace(dialect=dataclasses.replace(model.writing.dialect, hidden=()))


def test_special_tokens_that_mark_nothing_are_no_content() -> None:
    """Markers that are special tokens stay what they are."""
    marks = {"reasoning": Reasoning(begin="<|im_start|>", end="</think>")}
    for fields, more in (({}, {"<|im_start|>"}), (marks, set[str]())):
        dialect = present(models_of(a=mock(dialect="hermes", **fields))["m"].writing.dialect)
        assert {*dialect.hidden} == {"<|endoftext|>", "<|im_end|>"} | more


def test_the_pools_of_a_model_have_one_dialect() -> None:
    """An answer may go on in another pool."""
    hermes = mock(dialect="hermes")
    with pytest.raises(SettingsError, match=r"pools\.b: .*dialect"):
        models_of(a=POOL, b=hermes)
    model = models_of(a=hermes, b=hermes)["m"]
    assert (model.dialect, shown(model)) == ("qwen3", Writing(find_dialect("qwen3"), reasons=True))


def test_a_dialect_is_named_or_guessed_and_an_unknown_one_stops_the_process(tmp_path: Path) -> None:
    """The chat template is the basis of the guess, and also tells whether the model thinks."""
    template = tmp_path / "template"
    template.write_text("{{ tools }}<tool_call>{'name': …, 'arguments': …}</tool_call>{{ messages }}")
    model = models_of(a=mock(chat_template=template))["m"]
    assert (model.dialect, shown(model)) == ("qwen3", Writing(find_dialect("hermes")))
    template.with_name("thinks").write_text("<think>" + template.read_text())
    assert models_of(a=mock(chat_template=template.with_name("thinks")))["m"].writing.reasons
    assert models_of(a=POOL)["m"].writing == Writing()
    with pytest.raises(ValidationError, match=r"is none of .*hermes"):
        mock(dialect="klingon")


def test_a_model_that_embeds_is_not_told_to_chat_though_its_files_know_how(tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.write_text("{{ tools }}<tool_call>{'name': arguments <think>{{ messages }}")
    state = cast(ApiState, SimpleNamespace(aliases=SimpleNamespace(table={}), pipelines={}, started=0, media=None))
    can = []
    for task in ("generate", "embed"):
        card = _card(state, models_of(a=mock(chat_template=template, task=task))["m"])
        abilities = (card["capabilities"][ability] for ability in ("chat", "tools", "reasoning"))
        can.append((card["dialect"] is not None, *abilities))
    assert can == [(True,) * 4, (False,) * 4]
    assert card["task"] == "embed"


def test_no_dialect_can_be_asked_for(tmp_path: Path) -> None:
    """The process stops if markers of reasoning can't be told from those of calls."""
    template = tmp_path / "template"
    template.write_text("{{ tools }}<tool_call>{'name': …, 'arguments': …}</tool_call></think>{{ messages }}")
    assert models_of(a=mock(chat_template=template))["m"].writing.reasons
    assert models_of(a=mock(chat_template=template, dialect="none"))["m"].writing == Writing()
    with pytest.raises(SettingsError, match="overlap"):
        models_of(a=mock(chat_template=template, reasoning=Reasoning(begin="<tool")))


@pytest.mark.parametrize(("dialect", "special", "tools", "asked_for"), [
    ("hermes", False, True, True), ("hermes", False, False, False), ("hermes", True, False, True),
    ("nemotron", False, True, False), (None, False, False, False),
])  # fmt: skip
def test_engines_are_asked_for_special_tokens_where_markers_are_some(
    model: Model, dialect: str | None, special: bool, tools: bool, asked_for: bool
) -> None:
    """A chat would otherwise show special tokens that are no markers."""
    writing = Writing(find_dialect(dialect) if dialect else None, reasons=dialect is not None, special=special)
    template = Tokenizer(POOL.model_dir)
    template.template_variables |= {"tools"}
    own = dataclasses.replace(model, writing=writing, tokenizer=template)
    body = chat(model="models", **({"tools": [TIME]} if tools else {}))
    (sampling,) = chat_plan(asking({"models": own}, {PoolId("p"): POOL}), "chatcmpl-", body, "messages").sampling
    assert sampling.special_tokens == asked_for


@pytest.mark.parametrize(("begin", "special"), [("<|im_start|>", True), ("<think>", False)])
def test_the_tokenizer_tells_whether_markers_of_reasoning_are_special_tokens(begin: str, special: bool) -> None:
    assert models_of(a=mock(reasoning=Reasoning(begin=begin)))["m"].writing.special == special
