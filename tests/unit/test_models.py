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
from app.dispatch.asking import Asking
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.models import Model, load_models
from app.dispatch.models.writing import Writing
from app.dispatch.placing.placer import _round_size
from app.dispatch.runtime import Deployment
from app.errors import PromptTooLong, RequestError, SettingsError
from app.ids import PoolId
from app.openai import chat
from app.openai.completions import _plan
from app.openai.schemas import ChatRequest, CompletionRequest
from app.pools.schema import Pool, PoolsFile, Reasoning
from app.schemas.validation import parse
from app.settings import load_settings
from app.telemetry import Meters
from app.tokenizing.tokenizer import Tokenizer, load_tokenizer
from tests.present import present
from tests.refusals import refused

CONTEXT, TOGETHER = 10_000, 2**18
POOL = Pool(model="m", engine="mock")


@pytest.fixture(scope="module")
def model() -> Model:
    return Model("models", (PoolId("p"),), (), None, load_tokenizer(POOL.model_dir), CONTEXT, Meters("models"))


def plan(model: Model, **fields: object) -> GenerationPlan:
    deployment = Deployment(load_settings(), {PoolId("p"): POOL}, {"models": model})
    body = parse(CompletionRequest, orjson.dumps({"model": "models", "max_tokens": 1, **fields}))
    return _plan(Asking(deployment), body)


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
    assert plan(model, prompt=prompt, n=128).choices == 128


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
    plain = Pool(model="m", engine="mock", dialect="hermes")
    marked_pool = plain.model_copy(update={"reasoning": Reasoning(begin="<|im_start|>", end="</think>")})
    for pool, hidden_tokens in ((plain, {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}),
                                (marked_pool, {"<|endoftext|>", "<|im_end|>"})):  # fmt: skip
        dialect = present(load_models(PoolsFile(pools={PoolId("a"): pool}))["m"].writing.dialect)
        assert {*dialect.hidden} == hidden_tokens


def test_the_pools_of_a_model_have_one_dialect() -> None:
    """An answer may go on in another pool."""
    pools = {PoolId("a"): POOL, PoolId("b"): Pool(model="m", engine="mock", dialect="hermes")}
    with pytest.raises(SettingsError, match=r"pools\.b: .*dialect"):
        load_models(PoolsFile(pools=pools))
    one = {PoolId(name): Pool(model="m2", engine="mock", dialect="hermes") for name in "ab"}
    model = load_models(PoolsFile(pools=one))["m2"]
    assert (model.dialect, shown(model)) == ("qwen3", Writing(find_dialect("qwen3"), reasons=True))


def test_a_dialect_is_named_or_guessed_and_an_unknown_one_stops_the_process(tmp_path: Path) -> None:
    """The chat template is the basis of the guess, and also tells whether the model thinks."""
    template = tmp_path / "template"
    template.write_text("{{ tools }}<tool_call>{'name': …, 'arguments': …}</tool_call>{{ messages }}")
    pool = Pool(model="m", engine="mock", chat_template=template)
    model = load_models(PoolsFile(pools={PoolId("a"): pool}))["m"]
    assert (model.dialect, shown(model)) == ("qwen3", Writing(find_dialect("hermes")))
    template.with_name("thinks").write_text("<think>" + template.read_text())
    thinks = pool.model_copy(update={"chat_template": template.with_name("thinks")})
    assert load_models(PoolsFile(pools={PoolId("a"): thinks}))["m"].writing.reasons
    assert load_models(PoolsFile(pools={PoolId("a"): POOL}))["m"].writing == Writing()
    with pytest.raises(ValidationError, match=r"is none of .*hermes"):
        Pool(model="m", engine="mock", dialect="klingon")


def test_a_model_that_embeds_is_not_told_to_chat_though_its_files_know_how(tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.write_text("{{ tools }}<tool_call>{'name': arguments <think>{{ messages }}")
    pool = Pool(model="m", engine="mock", chat_template=template)
    can, state = (
        [],
        cast(ApiState, SimpleNamespace(aliases=SimpleNamespace(table={}), pipelines={}, started=0, media=None)),
    )
    for task in ("generate", "embed"):
        loaded_model = load_models(PoolsFile(pools={PoolId("a"): pool.model_copy(update={"task": task})}))["m"]
        card = _card(state, loaded_model)
        can.append(
            (
                card["dialect"] is not None,
                *(card["capabilities"][ability] for ability in ("chat", "tools", "reasoning")),
            )
        )
    assert can == [(True,) * 4, (False,) * 4]
    assert card["task"] == "embed"


def test_no_dialect_can_be_asked_for(tmp_path: Path) -> None:
    """The process stops if markers of reasoning can't be told from those of calls."""
    template = tmp_path / "template"
    template.write_text("{{ tools }}<tool_call>{'name': …, 'arguments': …}</tool_call></think>{{ messages }}")
    default_pool = Pool(model="m", engine="mock", chat_template=template)
    assert load_models(PoolsFile(pools={PoolId("a"): default_pool}))["m"].writing.reasons
    none = default_pool.model_copy(update={"dialect": "none"})
    assert load_models(PoolsFile(pools={PoolId("a"): none}))["m"].writing == Writing()
    overlapping = default_pool.model_copy(update={"reasoning": Reasoning(begin="<tool")})
    with pytest.raises(SettingsError, match="overlap"):
        load_models(PoolsFile(pools={PoolId("a"): overlapping}))


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
    deployment = Deployment(
        load_settings(),
        {PoolId("p"): POOL},
        {"models": dataclasses.replace(model, writing=writing, tokenizer=template)},
    )
    tool_fields = {"tools": [{"type": "function", "function": {"name": "f"}}]} if tools else {}
    messages = [{"role": "user", "content": "?"}]
    body = parse(ChatRequest, orjson.dumps({"model": "models", "messages": messages, **tool_fields}))
    assert chat.chat_plan(Asking(deployment), "chatcmpl-", body, "messages").sampling[0].special_tokens == asked_for


@pytest.mark.parametrize(("begin", "special"), [("<|im_start|>", True), ("<think>", False)])
def test_the_tokenizer_tells_whether_markers_of_reasoning_are_special_tokens(begin: str, special: bool) -> None:
    pool = Pool(model="m", engine="mock", reasoning=Reasoning(begin=begin))
    assert load_models(PoolsFile(pools={PoolId("a"): pool}))["m"].writing.special == special
