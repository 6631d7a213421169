"""A chat's answer whose text is its content as it comes."""

from typing import Any

from app.dispatch.generation_base import GenerationBase
from app.messages import Delta
from app.openai.completion_writer import CompletionWriter
from app.openai.logprobs import chat_logprobs
from app.openai.schemas import ChatRequest


class ChatWriter(CompletionWriter):
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
