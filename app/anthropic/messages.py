"""POST /v1/messages: the plan of a request, and its answer's writer."""

from typing import Any

from msgspec import structs

from app.anthropic.content import media_params
from app.anthropic.conversation import fit_template
from app.anthropic.message_writer import MessageWriter
from app.anthropic.names import openais_names
from app.anthropic.schemas import CountRequest, MessagesRequest, PromptFields
from app.dispatch.asking import Asking
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.media.media_reader import Origin, Samples
from app.dispatch.models.models import Model
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


async def understand(asking: Asking, raw: bytes) -> tuple[MessagesRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await asking.served(await parse_off_loop(MessagesRequest, raw), "messages")
    compiles = await asking.serving.off_loop(raw, lambda: body.chat.compiles or body.chat.binds_calls)
    samples = await _samples(asking, body, raw)
    plan = await asking.serving.off_loop(raw, lambda: _plan(asking, body, samples), compiles=compiles)
    if plan.grammars:
        with openais_names():
            await asking.serving.grammars.check(plan.grammars)
    return body, plan


async def _samples(asking: Asking, body: PromptFields, raw: bytes) -> Samples:
    def named() -> tuple[list[Origin], list[str]]:
        return origins_of(body.chat.messages), media_params(body.messages)

    return await load_media(asking, asking.find_model(body.model), *await asking.serving.off_loop(raw, named))


def _plan(asking: Asking, body: MessagesRequest, samples: Samples) -> GenerationPlan:
    """The plan of an answer.

    As at Anthropic, `max_tokens` may be over the model's context; the answer then ends with the context.
    """
    chat = fitted(body, asking.find_model(body.model))
    with openais_names():
        plan = chat_plan(asking, PREFIX, chat, "messages", format_=chat.asked_format(), samples=samples)
    (sampling,) = plan.sampling
    most = min(body.max_tokens, sampling.max_tokens)
    return structs.replace(plan, sampling=[structs.replace(sampling, max_tokens=most)])


async def count(asking: Asking, raw: bytes) -> int:
    """The tokens of a prompt, which need not fit the context. Raises: XylemError."""
    body = await asking.served(await parse_off_loop(CountRequest, raw), "messages")
    samples = await _samples(asking, body, raw)
    return await asking.serving.off_loop(raw, lambda: _counted(asking, body, samples))


def _counted(asking: Asking, body: CountRequest, samples: Samples) -> int:
    model = asking.find_model(body.model)
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
