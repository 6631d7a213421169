"""Text completions: what a body means, and what its answer looks like."""

from collections.abc import Sequence
from functools import partial
from typing import Literal, cast

import orjson
from msgspec.structs import replace

from app.dispatch.asking import Asking
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.media.media_reader import Origin, Sample
from app.dispatch.models.models import Model
from app.endpoints import TEXT
from app.errors import RequestError
from app.grammars.checker import GrammarCheck
from app.media.prompt_embeds import prompt_embeds_of
from app.media.refused import Refused
from app.messages.events import Delta
from app.messages.media import MEDIA_NAMES, Media
from app.openai.answer_types import Envelope, TextAnswer, TextChoice, TextCompletion
from app.openai.answer_types import TextLogprobs as ShownLogprobs
from app.openai.beams import unbound
from app.openai.completion_writer import CompletionWriter
from app.openai.echo import Echo
from app.openai.envelope import envelope
from app.openai.logprobs import TextLogprobs, prompt_logprobs
from app.openai.plan import plan_of
from app.openai.schemas import MOST_BIASES, MOST_LOGPROBS, CompletionRequest
from app.openai.structured import content_grammar, with_grammar
from app.schemas.validation import parse_off_loop
from app.tenants.limits import answer_tokens

_DEFAULT_MAX_TOKENS = 16  # OpenAI's
_MAX_PROMPTS = 128
_UNKNOWN = 0  # the token id that stands for a row of an embedding, as in vLLM


async def understand(asking: Asking, raw: bytes) -> tuple[CompletionRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await asking.served(
        await parse_off_loop(CompletionRequest, raw, asking.serving.longest_context), "completions"
    )
    body.check()
    body = body.filled(asking.find_model(body.model).defaults)
    work = partial(_plan, asking, body)
    plan = await asking.serving.off_loop(raw, work, compiles=body.compiles)
    if plan.grammars:
        await asking.serving.grammars.check(plan.grammars)
    return body, plan


def _plan(asking: Asking, body: CompletionRequest) -> GenerationPlan:
    model = asking.find_model(body.model)
    usual = answer_tokens(asking.within, _DEFAULT_MAX_TOKENS) or 0
    limit = usual if body.max_tokens is None else body.max_tokens
    embeds = _embeds(body, model, limit)
    prompts = [[_UNKNOWN] * one.media.length for one in embeds]
    if body.prompt or not embeds:  # beside embeddings, an empty prompt is none: OpenAI's client has to send one
        prompts += _prompts(body, model, limit, prompts)
    if len(body.logit_bias or ()) * len(prompts) > MOST_BIASES:
        raise RequestError(f"At most {MOST_BIASES} biases over all prompts.", param="logit_bias")
    if limit == 0 and not body.echo:
        raise RequestError("'max_tokens' has to be at least 1 without 'echo'.", param="max_tokens")
    prompt_logprobs = body.logprobs if body.echo else None
    if prompt_logprobs is not None and body.prompt_logprobs is not None:
        raise RequestError("'prompt_logprobs' can't be used with 'echo' and 'logprobs'.", param="prompt_logprobs")
    body.check_logprobs(sum(map(len, prompts)))
    if prompt_logprobs is not None and sum(map(len, prompts)) * (prompt_logprobs + 1) * (body.n or 1) > MOST_LOGPROBS:
        raise RequestError(
            f"'logprobs' with 'echo': at most {MOST_LOGPROBS} for all tokens of all prompts, in all choices together.",
            param="logprobs",
        )
    prompt_sampling = body.sampling(max(1, limit), logprobs=body.logprobs, prompt_logprobs=prompt_logprobs)
    checks: list[GrammarCheck] = []
    if (answer_format := body.asked_format()) is not None:
        if prompt_sampling.beams is not None:
            raise unbound(answer_format.where)
        grammar = content_grammar(answer_format)
        prompt_sampling, checks = with_grammar(grammar, prompt_sampling), [GrammarCheck(grammar, answer_format.where)]
    sampling = [prompt_sampling] * len(prompts)
    plan = plan_of(asking, body, TEXT.prefix, model, prompts, sampling=sampling, cache_salt=body.cache_salt)
    if checks:
        plan = replace(plan, grammars=checks)
    if embeds:
        media = [[sample.media] for sample in embeds] + [[] for _ in prompts[len(embeds) :]]
        samples = {Origin("embeds", number=number): sample for number, sample in enumerate(embeds)}
        plan = replace(plan, media=media, samples=samples)
    if not body.echo:
        return plan
    texts = [model.tokenizer.decode(prompt, skip_special_tokens=False) for prompt in prompts]
    return replace(plan, echo=texts, generates=limit > 0)


class TextWriter(CompletionWriter[TextAnswer]):
    """Writes an answer."""

    CHUNK = b"text_completion"
    BEFORE_TEXT, AFTER_TEXT = b',"text":', b',"logprobs":'

    def __init__(self, call: GenerationBase, body: CompletionRequest) -> None:
        super().__init__(call, body)
        self._logprobs = TextLogprobs(as_ids=bool(body.return_tokens_as_token_ids))
        self._begun: set[int] = set()  # choices whose prompt has been sent
        self._echo = None if call.plan.echo is None else Echo(call.plan)

    async def whole(self) -> TextCompletion:
        """Raises: the error that ended it."""
        answer = await self.made()
        head: Envelope[Literal["text_completion"]] = envelope(self._call, "text_completion")
        return {**head, **answer, "usage": self.usage()}

    def answer(self, choices: list[tuple[int, Delta]]) -> TextAnswer:
        return {"choices": [self.choice(i, d) for i, d in choices]}

    def choice(self, index: int, d: Delta) -> TextChoice:
        """One choice of a whole answer."""
        d = d if self._echo is None else self._echo(index, d)
        assert d.finish is not None
        choice: TextChoice = {
            "index": index,
            "text": d.text,
            "logprobs": self._logprobs(index, d),
            "finish_reason": d.finish,
            "stop_reason": d.stop,
        }
        if self._token_ids:
            choice["prompt_token_ids"], choice["token_ids"] = self._prompt(index), d.tokens
        if d.prompt_logprobs is not None and not self._echo:
            choice["prompt_logprobs"] = prompt_logprobs(d)
        return choice

    def _prompt(self, choice: int) -> list[int]:
        return self._call.prompts[choice // self._call.plan.sampling[0].n]

    def extra_fields(self, choice: int, d: Delta) -> bytes:
        """A choice's first chunk also has the prompt's token ids."""
        fields = super().extra_fields(choice, d)
        if not fields or choice in self._begun:
            return fields
        self._begun.add(choice)
        return b',"prompt_token_ids":%b%b' % (orjson.dumps(self._prompt(choice)), fields)

    def logprobs(self, choice: int, d: Delta) -> ShownLogprobs | None:
        return self._logprobs(choice, d)

    def delta(self, choice: int, d: Delta) -> bytes:
        return super().delta(choice, d if self._echo is None else self._echo(choice, d))


def _embeds(body: CompletionRequest, model: Model, limit: int) -> list[Sample]:
    """Raises: RequestError about one of them, also when the model takes none."""
    texts = body.embeds
    if not texts:
        return []
    if model.embeds_width is None:
        raise RequestError(
            f"'prompt_embeds': the model '{model.name}' takes no {MEDIA_NAMES['embeds']}.", param="prompt_embeds"
        )
    if len(texts) > _MAX_PROMPTS:
        raise RequestError(f"At most {_MAX_PROMPTS} prompts in one request.", param="prompt_embeds")
    samples: list[Sample] = []
    for number, text in enumerate(texts):
        param = "prompt_embeds" if isinstance(body.prompt_embeds, str) else f"prompt_embeds.{number}"
        try:
            embeds = prompt_embeds_of(text, model.embeds_width, model.context_len)
        except Refused as exc:
            raise RequestError(f"'{param}': {exc}.", param=param) from exc
        model.room([_UNKNOWN] * embeds.rows, limit, param)
        media = Media("embeds", embeds.sha256, (embeds.rows, embeds.width), 0, embeds.rows, dtype=embeds.dtype)
        samples.append(Sample(media, embeds.data, param))
    if sum(sample.media.length for sample in samples) > model.most_tokens:
        raise RequestError(f"All prompts together have more than {model.most_tokens} tokens.", param="prompt_embeds")
    return samples


def _prompts(body: CompletionRequest, model: Model, limit: int, others: Sequence[list[int]]) -> list[list[int]]:
    """The prompt in each of its four shapes as lists of token ids. `others`: of this request. Raises: RequestError."""
    raw = body.prompt
    copies = (body.n or 1) if body.echo else 1  # of each prompt, in the answer
    many = [raw] if isinstance(raw, str) or (raw and isinstance(raw[0], int)) else raw
    if raw is None or not many:
        raise RequestError("The prompt is empty.", param="prompt")
    if len(many) + len(others) > _MAX_PROMPTS:
        raise RequestError(f"At most {_MAX_PROMPTS} prompts in one request.", param="prompt")
    prompts, room = [], model.most_tokens - sum(map(len, others))
    for item in many:
        prompt = model.encode(item, "prompt") if isinstance(item, str) else cast(list[int], item)
        model.room(prompt, limit, "prompt")
        room -= len(prompt) * copies
        if room < 0:
            subject = "All prompts together, echoed with each choice," if copies > 1 else "All prompts together"
            raise RequestError(f"{subject} have more than {model.most_tokens} tokens.", param="prompt")
        model.check_tokens(prompt)
        prompts.append(prompt)
    return prompts
