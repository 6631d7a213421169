"""POST /v1/messages: the plan of a request, and its answer's writer."""

from typing import Any

from msgspec import structs

from app.anthropic.content import media_params
from app.anthropic.conversation import fit_template
from app.anthropic.message_writer import MessageWriter
from app.anthropic.names import openais_names
from app.anthropic.schemas import CountRequest, MessagesRequest, PromptFields
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.media.media_reader import Origin, Samples
from app.dispatch.models.models import Model
from app.dispatch.runtime import Deployment
from app.endpoints import MESSAGE
from app.openai.chat import chat_plan
from app.openai.efforts import SWITCHES
from app.openai.media import load_media, origins_of
from app.openai.media_prompt import counted, markers_of
from app.openai.model_parser import check_dialect, parser_maker
from app.openai.prompt import chat_prompt
from app.openai.schemas import ChatRequest
from app.schemas.validation import parse_off_loop

PREFIX = MESSAGE.prefix


async def understand(state: Deployment, raw: bytes, *, explain: bool = False) -> tuple[MessagesRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await state.served(await parse_off_loop(MessagesRequest, raw), "messages")
    compiles = await state.off_loop(raw, lambda: body.chat.compiles or body.chat.binds_calls)
    samples = await _samples(state, body, raw)
    plan = await state.off_loop(raw, lambda: _plan(state, body, samples, explain=explain), compiles=compiles)
    if plan.grammars:
        with openais_names():
            await state.grammars.check(plan.grammars)
    return body, plan


async def _samples(state: Deployment, body: PromptFields, raw: bytes) -> Samples:
    def named() -> tuple[list[Origin], list[str]]:
        return origins_of(body.chat.messages), media_params(body.messages)

    return await load_media(state, state.find_model(body.model), *await state.off_loop(raw, named))


def _plan(state: Deployment, body: MessagesRequest, samples: Samples, *, explain: bool) -> GenerationPlan:
    """The plan of an answer.

    As at Anthropic, `max_tokens` may be over the model's context; the answer then ends with the context.
    """
    chat = fitted(body, state.find_model(body.model))
    with openais_names():
        plan = chat_plan(state, PREFIX, chat, "messages", explain=explain, wanted=chat.asked_format(), samples=samples)
    (sampling,) = plan.sampling
    most = min(body.max_tokens, sampling.max_tokens)
    return structs.replace(plan, sampling=[structs.replace(sampling, max_tokens=most)])


async def count(state: Deployment, raw: bytes) -> int:
    """The tokens of a prompt, which need not fit the context. Raises: XylemError."""
    body = await state.served(await parse_off_loop(CountRequest, raw), "messages")
    samples = await _samples(state, body, raw)
    return await state.off_loop(raw, lambda: _counted(state, body, samples))


def _counted(state: Deployment, body: CountRequest, samples: Samples) -> int:
    model = state.find_model(body.model)
    chat = fitted(body, model)
    with openais_names():
        check_dialect(model, chat)
        text = chat_prompt(model.tokenizer, chat.messages, chat, markers_of(model, samples), samples)
        return len(counted(model, text, origins_of(chat.messages), samples))


def fitted(body: PromptFields, model: Model) -> ChatRequest:
    """The chat of a request. Options that the model's template doesn't have are left out: clients send them anyway."""
    variables = model.tokenizer.template_variables
    fields: dict[str, Any] = {"messages": fit_template(body.chat.messages, model.tokenizer)}
    if (thinking := body.thinking) is not None:
        fields["chat_template_kwargs"] = {name: thinking.type != "disabled" for name in SWITCHES if name in variables}
    if body.output_config is not None:
        fields["reasoning_effort"] = body.output_config.effort
    return body.chat.model_copy(update=fields)


def writer(call: GenerationBase, body: MessagesRequest) -> MessageWriter:
    return MessageWriter(call, body, parser_maker(call, body.chat))
