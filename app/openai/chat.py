"""Chat completions: what a body means, and what its answer looks like."""

from functools import partial

from msgspec.structs import replace

from app.dispatch.asking import Asking
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.media.media_reader import NO_SAMPLES, Samples
from app.dispatch.models.models import Model
from app.endpoints import CHAT
from app.errors import RequestError
from app.openai.answer_grammar import AnswerGrammar, answer_grammar
from app.openai.beams import unbound
from app.openai.chat_writer import ChatWriter
from app.openai.conversation import has_media
from app.openai.media import load_media, named_media, origins_of
from app.openai.media_prompt import encoded, expanded, markers_of
from app.openai.model_parser import check_dialect, content_rules, parser_maker, read_dialect, situation
from app.openai.parts_writer import PartsWriter
from app.openai.plan import plan_of
from app.openai.prediction import PredictedChat, PredictedParts
from app.openai.prompt import chat_prompt, tokenizer_of
from app.openai.schemas import ChatRequest, Conversation
from app.openai.structured import Format, with_grammar
from app.schemas.validation import parse_off_loop
from app.tenants.limits import answer_tokens
from app.tokenizing.tokenizer import Tokenizer


async def understand(asking: Asking, raw: bytes) -> tuple[ChatRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await asking.served(await parse_off_loop(ChatRequest, raw), "chat")
    body.check()
    model = asking.find_model(body.model)
    if body.prediction is not None and not model.drafts:
        raise RequestError("'prediction' is not supported by this server for this model.", param="prediction")
    if model.defaults:
        body = body.filled(model.defaults)
    samples = NO_SAMPLES
    if has_media(body.messages):
        samples = await load_media(
            asking, model, *await asking.serving.off_loop(raw, partial(named_media, body.messages))
        )
    answer_format = body.asked_format()
    work = partial(chat_plan, asking, CHAT.prefix, body, "messages", format_=answer_format, samples=samples)
    compiles = answer_format is not None or (body.tools is not None and body.binds_calls)
    plan = await asking.serving.off_loop(raw, work, compiles=compiles, waits=body.chat_template is not None)
    if plan.grammars:
        await asking.serving.grammars.check(plan.grammars)
    return body, plan


def chat_plan(
    asking: Asking,
    prefix: str,
    body: Conversation,
    param: str,
    *,
    format_: Format | None = None,
    samples: Samples = NO_SAMPLES,
) -> GenerationPlan:
    """`prefix`: of its id. `param`: the request's field with the messages. Raises: XylemError.

    `format_`: the format of the answer's content. Then a grammar is made, which is not for an event loop, and is in
    `grammars`, to be checked. `samples`: of all pictures and sound in its messages.
    """
    model = asking.find_model(body.model)
    if model.defaults:
        body = body.filled(model.defaults)
    tokenizer, prompt = _prompt(asking, model, body, param, samples)
    if samples:
        expansion = expanded(model, prompt, origins_of(body.messages), samples, param)
        prompt = expansion.prompt
    room = _room(asking, model, body, prompt, param)
    sampling = body.sampling(room, logprobs=(body.top_logprobs or 0) if body.logprobs else None)
    dialect = read_dialect(model, body)
    if dialect is not None and (dialect.special_tokens if body.tools and body.offered else model.writing.special):
        sampling = replace(sampling, special_tokens=True)
    if dialect is not None and sampling.stop:
        sampling = replace(sampling, content=content_rules(model, prompt, body))
    plan = plan_of(asking, body, prefix, model, [prompt], sampling=[sampling], cache_salt=body.cache_salt)
    calls = body.bound_calls() if body.tools else None
    if format_ is not None or (calls is not None and calls.bound):
        if sampling.beams is not None:
            raise unbound(format_.where if format_ is not None else calls.where if calls is not None else "tools")
        plan = _bound(plan, answer_grammar(format_, calls, situation(model, prompt, body)))
    if body.reasoning_effort is not None and (effort := body.heard_effort(tokenizer)) is not None:
        plan = replace(plan, effort=effort)
    return replace(plan, media=[expansion.media], written=[expansion.written], samples=samples) if samples else plan


def _bound(plan: GenerationPlan, grammar: AnswerGrammar | None) -> GenerationPlan:
    """The plan of an answer that keeps to a grammar; None: nothing has to be enforced."""
    sampling = [with_grammar(None if grammar is None else grammar.grammar, plan.sampling[0])]
    return replace(plan, sampling=sampling, grammars=() if grammar is None else grammar.checks)


def _room(asking: Asking, model: Model, body: Conversation, prompt: list[int], param: str) -> int:
    """Number of tokens that the answer may have. Raises: RequestError."""
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if limit == 0:
        raise RequestError("'max_tokens' has to be at least 1.", param="max_tokens")
    if body.prompt_logprobs is not None:
        body.check_logprobs(len(prompt))
    room = model.room(prompt, limit, param)
    if limit is None:
        own = model.defaults.get("max_new_tokens")
        room = min(room, answer_tokens(asking.within, None if own is None else int(own)) or room)
    return room


def _prompt(
    asking: Asking, model: Model, body: Conversation, param: str, samples: Samples
) -> tuple[Tokenizer, list[int]]:
    """The conversation's tokens, as its template wrote it, and the tokenizer that has the template.

    Raises: RequestError.
    """
    if body.tools is not None:
        check_dialect(model, body)
    tokenizer, field = model.tokenizer, param
    if body.chat_template is not None:
        tokenizer = tokenizer_of(tokenizer, body, trusted=asking.serving.settings.request_chat_templates)
        field = "chat_template"
    markers = markers_of(model, samples) if samples or model.markers else None
    text = chat_prompt(tokenizer, body.messages, body, markers, samples)
    if samples:
        prompt = encoded(model, text, samples, partial(model.encode, param=param, add_special_tokens=False))
    else:
        prompt = model.encode(text, param, add_special_tokens=False)
    if not prompt:
        raise RequestError(f"'{field}': the chat template shows none of the messages.", param=field)
    return tokenizer, prompt


def writer(call: GenerationBase, body: ChatRequest) -> ChatWriter:
    make_parser = parser_maker(call, body)
    if body.prediction is not None:
        return PredictedChat(call, body) if make_parser is None else PredictedParts(call, body, make_parser)
    return ChatWriter(call, body) if make_parser is None else PartsWriter(call, body, make_parser)
