"""A chat's answer, all of whose text is content."""

from collections.abc import Awaitable, Callable
from typing import Literal

import orjson

from app.messages.events import Delta
from app.openai.answer_types import ChatAnswer, ChatChoice, ChatCompletion, ChatLogprobs, Envelope
from app.openai.completion_writer import CompletionWriter
from app.openai.envelope import envelope
from app.openai.logprobs import chat_logprobs, prompt_logprobs


class ChatWriter(CompletionWriter[ChatAnswer]):
    CHUNK = b"chat.completion.chunk"
    BEFORE_TEXT, AFTER_TEXT = b',"delta":{"content":', b'},"logprobs":'

    async def read(self, tell: Callable[[str], Awaitable[None]]) -> str:
        """The text of an answer with one choice, to its end; `tell` gets its pieces as they come.

        Raises: the error that ended it.
        """
        pieces: list[str] = []
        while deltas := await self._call.deltas():
            for _, d in deltas:
                self._call.count(d)
            if piece := "".join([self.content(choice, d) for choice, d in deltas]):
                pieces.append(piece)
                await tell(piece)
        return "".join(pieces)

    def content(self, _choice: int, d: Delta) -> str:
        """The text that a delta adds."""
        return d.text

    async def whole(self) -> ChatCompletion:
        """Raises: the error that ended it."""
        answer = await self.made()
        head: Envelope[Literal["chat.completion"]] = envelope(self._call, "chat.completion")
        return {**head, **answer, "usage": self.usage()}

    def answer(self, choices: list[tuple[int, Delta]]) -> ChatAnswer:
        result: ChatAnswer = {"choices": [self.choice(i, d) for i, d in choices]}
        if self._token_ids:
            result["prompt_token_ids"] = self._call.prompts[0]
        if choices[0][1].prompt_logprobs is not None:
            result["prompt_logprobs"] = prompt_logprobs(choices[0][1])
        return result

    def choice(self, index: int, d: Delta) -> ChatChoice:
        """One choice of a whole answer."""
        assert d.finish is not None
        choice: ChatChoice = {
            "index": index,
            "message": {"role": "assistant", "content": d.text, "refusal": None},
            "logprobs": chat_logprobs(d, as_ids=self._as_ids),
            "finish_reason": d.finish,
            "stop_reason": d.stop,
        }
        if self._token_ids:
            choice["token_ids"] = d.tokens
        return choice

    def logprobs(self, _choice: int, d: Delta) -> ChatLogprobs | None:
        return chat_logprobs(d, as_ids=self._as_ids)

    def opening(self, choices: int) -> bytes:
        """The role of each choice, which OpenAI's clients take from these events."""
        if self._call.placed_weights:
            self._begin(self._call.placed_weights)
        return b"".join(map(self._role, range(choices)))

    def _role(self, choice: int) -> bytes:
        """Choice 0 also has the prompt's token ids, if the client asked for them."""
        ids = b'"prompt_token_ids":%b,' % orjson.dumps(self._call.prompts[0]) if self._token_ids and not choice else b""
        return (
            self._start
            + ids
            + b'"choices":[{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            % choice
            + self.end()
        )
