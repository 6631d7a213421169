"""Chat completions: what a body means, and what its answer looks like."""

from typing import Any

import orjson
from msgspec.structs import replace

from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models import find_model
from app.dispatch.runtime import Deployment
from app.errors import RequestError
from app.messages import Delta
from app.openai.completion_writer import PLAIN_END, CompletionWriter
from app.openai.logprobs import chat_logprobs
from app.openai.parsing.families import reasoning_only
from app.openai.parsing.output_parser import OutputParser
from app.openai.parsing.parts import Content, Reasoning
from app.openai.plan import plan_of
from app.openai.schemas import ChatRequest, Conversation
from app.openai.validation import parse_off_loop


async def understand(state: Deployment, raw: bytes, *, explain: bool = False) -> tuple[ChatRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await parse_off_loop(ChatRequest, raw)
    body.check()
    return body, await state.off_loop(raw, lambda: chat_plan(state, "chatcmpl-", body, "messages", explain=explain))


def chat_plan(state: Deployment, prefix: str, body: Conversation, param: str, *, explain: bool) -> GenerationPlan:
    """`prefix`: of its id. `param`: the field of the request that the messages are of. Raises: XylemError."""
    model = find_model(state.models, body.model)
    prompt = model.encode(model.render(body.messages), param, add_special_tokens=False)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if limit == 0:
        raise RequestError("'max_tokens' has to be at least 1.", param="max_tokens")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    sampling = body.sampling(model.room(prompt, limit, param), logprobs=logprobs)
    return plan_of(state, body, prefix, model, [prompt], [sampling], explain=explain)


class ChatWriter(CompletionWriter):
    """An answer."""

    KIND, CHUNK = "chat.completion", b"chat.completion.chunk"
    BEFORE_TEXT, AFTER_TEXT = b',"delta":{"content":', b'},"logprobs":'

    def __init__(self, call: GenerationBase, body: ChatRequest) -> None:
        super().__init__(call, body.stream_options)

    def choice(self, index: int, d: Delta) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": d.text, "refusal": None},
            "logprobs": chat_logprobs(d),
            "finish_reason": d.finish,
            "stop_reason": d.stop,
        }

    def logprobs(self, _choice: int, d: Delta) -> Any:
        return chat_logprobs(d)

    def opening(self, choices: int) -> bytes:
        """The role of each choice, which OpenAI's clients take from it."""
        return b"".join(map(self._role, range(choices)))

    def _role(self, choice: int) -> bytes:
        return (
            self._start
            + b'"choices":[{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            % choice
            + self._end
        )


class ReasoningWriter(ChatWriter):
    """Of a model that thinks: its reasoning apart from the content, in the field that vLLM and SGLang have for it."""

    def __init__(self, call: GenerationBase, body: ChatRequest) -> None:
        super().__init__(call, body)
        assert call.model.reasoning is not None
        self._begun = call.model.reasoning.begun
        self._dialect = reasoning_only(call.model.reasoning.begin, call.model.reasoning.end)
        self._parsers: dict[int, OutputParser] = {}

    def choice(self, index: int, d: Delta) -> dict[str, Any]:
        reasoning, content = self._parts(index, d)
        made = super().choice(index, replace(d, text=content))
        made["message"]["reasoning_content"] = reasoning or None
        return made

    def delta(self, choice: int, d: Delta) -> bytes:
        reasoning, content = self._parts(choice, d)
        rest = super().delta(choice, replace(d, text=content))
        if not reasoning:
            return rest
        # One event, since a client that resumes names the last one that it has.
        head = self._head(choice)
        begun = head.removesuffix(self.BEFORE_TEXT) + b',"delta":{"reasoning_content":%b' % orjson.dumps(reasoning)
        if rest:
            return begun + b',"content":' + rest.removeprefix(head)
        return begun + b'},"logprobs":' + PLAIN_END + self.end()

    def _parts(self, choice: int, d: Delta) -> tuple[str, str]:
        """Reasoning and content that a delta adds."""
        parser = self._parsers.get(choice)
        if parser is None:
            parser = self._parsers[choice] = OutputParser(self._dialect, {}, begun=self._begun)
        parts = parser.feed(d.text)
        if d.finish is not None:
            parts += parser.close()
        reasoning = "".join(p.text for p in parts if isinstance(p, Reasoning))
        return reasoning, "".join(p.text for p in parts if isinstance(p, Content))


def writer(call: GenerationBase, body: ChatRequest) -> ChatWriter:
    return ChatWriter(call, body) if call.model.reasoning is None else ReasoningWriter(call, body)
