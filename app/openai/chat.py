"""Chat completions: what a body means, and what its answer looks like."""

from functools import partial

from msgspec.structs import replace

from app.dispatch.asking import Asking
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.media.media_reader import NO_SAMPLES, Samples
from app.endpoints import CHAT
from app.errors import RequestError
from app.openai.answer_grammar import answer_grammar
from app.openai.chat_writer import ChatWriter
from app.openai.media import has_media, load_media, named_media, origins_of
from app.openai.media_prompt import Expanded, encoded, expanded, markers_of
from app.openai.model_parser import check_dialect, content_rules, parser_maker, read_dialect, situation
from app.openai.parts_writer import PartsWriter
from app.openai.plan import plan_of
from app.openai.prediction import PredictedChat, PredictedParts
from app.openai.prompt import chat_prompt, tokenizer_of
from app.openai.schemas import ChatRequest, Conversation
from app.openai.structured import Format, with_grammar
from app.schemas.validation import parse_off_loop
from app.tenants.limits import answer_tokens

_NO_MEDIA = Expanded([], [], [])


async def understand(asking: Asking, raw: bytes) -> tuple[ChatRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await asking.served(await parse_off_loop(ChatRequest, raw), "chat")
    body.check()
    model = asking.find_model(body.model)
    if body.prediction is not None and not model.drafts:
        raise RequestError("'prediction' is not supported by this server for this model.", param="prediction")
    body = body.filled(model.defaults)
    samples = NO_SAMPLES
    if has_media(body.messages):
        samples = await load_media(
            asking, model, *await asking.serving.off_loop(raw, partial(named_media, body.messages))
        )
    answer_format = body.asked_format()
    work = partial(chat_plan, asking, CHAT.prefix, body, "messages", format_=answer_format, samples=samples)
    compiles, waits = answer_format is not None or body.binds_calls, body.chat_template is not None
    plan = await asking.serving.off_loop(raw, work, compiles=compiles, waits=waits)
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
    check_dialect(model, body)
    body = body.filled(model.defaults)
    tokenizer = tokenizer_of(model.tokenizer, body, trusted=asking.serving.settings.request_chat_templates)
    text = chat_prompt(tokenizer, body.messages, body, markers_of(model, samples), samples)
    encode = partial(model.encode, param=param, add_special_tokens=False)
    prompt, expansion = encoded(model, text, samples, encode) if samples else encode(text), _NO_MEDIA
    if not prompt:
        field = param if body.chat_template is None else "chat_template"
        raise RequestError(f"'{field}': the chat template shows none of the messages.", param=field)
    if samples:
        expansion = expanded(model, prompt, origins_of(body.messages), samples, param)
        prompt = expansion.prompt
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if limit == 0:
        raise RequestError("'max_tokens' has to be at least 1.", param="max_tokens")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    body.check_logprobs(len(prompt))
    room = model.room(prompt, limit, param)
    if limit is None:
        own = model.defaults.get("max_new_tokens")
        room = min(room, answer_tokens(asking.within, None if own is None else int(own)) or room)
    sampling = body.sampling(room, logprobs=logprobs)
    dialect = read_dialect(model, body)
    if dialect is not None and (dialect.special_tokens if body.offered else model.writing.special):
        sampling = replace(sampling, special_tokens=True)
    if dialect is not None and sampling.stop:
        sampling = replace(sampling, content=content_rules(model, prompt, body))
    calls = body.bound_calls()
    grammar = None
    if format_ is not None or (calls is not None and calls.bound):
        grammar = answer_grammar(format_, calls, situation(model, prompt, body))
        sampling = with_grammar(None if grammar is None else grammar.grammar, sampling)
    plan = plan_of(asking, body, prefix, model, [prompt], [sampling], cache_salt=body.cache_salt)
    if grammar is not None:
        plan = replace(plan, grammars=grammar.checks)
    if (effort := body.heard_effort(tokenizer)) is not None:
        plan = replace(plan, effort=effort)
    return replace(plan, media=[expansion.media], written=[expansion.written], samples=samples) if samples else plan


def writer(call: GenerationBase, body: ChatRequest) -> ChatWriter:
    make_parser = parser_maker(call, body)
    if body.prediction is not None:
        return PredictedChat(call, body) if make_parser is None else PredictedParts(call, body, make_parser)
    return ChatWriter(call, body) if make_parser is None else PartsWriter(call, body, make_parser)
