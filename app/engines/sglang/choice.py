"""One choice of an answer: SGLang's chunks, which are tokens, become steps with text.

Text and stop strings are made here and not by SGLang, whose stop strings know no min_tokens, and nothing of what was
out of an answer that another engine began.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from app.engines.base import GenerateRequest, StepOutput
from app.engines.resume import ContinuedText, rest
from app.engines.sglang.convert import refusal, token_logprobs
from app.engines.stops import StopScanner
from app.engines.token_text import TokenText
from app.errors import HandoffFailed
from app.messages.events import TokenLogprob
from app.messages.job import PartialOutput, Sampling
from app.messages.kinds import FinishReason
from app.tokenizing.token_names import TokenNames
from app.tokenizing.tokenizer import Tokenizer


class SglangChoice:
    def __init__(self, request: GenerateRequest, index: int, tokenizer: Tokenizer, context_len: int) -> None:
        self._request, self._index, self._tokenizer = request, index, tokenizer
        s = request.sampling
        output_so_far = request.begun[index] if request.begun else PartialOutput([])
        self.begun = len(output_so_far.tokens)
        self.prompt = [*request.prompt, *output_so_far.tokens]
        sampling, room = rest(s, output_so_far, index), context_len - len(self.prompt)
        limits = {"max_tokens": min(sampling.max_tokens, room), "min_tokens": min(sampling.min_tokens, room)}
        self.sampling: Sampling = replace(sampling, **limits)
        self._text = TokenText(tokenizer.raw, request.prompt, special=s.special_tokens)
        self._scanner = StopScanner(s.stop, include=s.include_stop) if s.stop else None
        text = "".join(map(self._text, output_so_far.tokens))
        if self._scanner is not None:
            text, _ = self._scanner.push(text, check=False)  # had one been there, it would have been the end
        self._names = TokenNames(tokenizer)
        if s.logprobs is not None:
            for token in output_so_far.tokens:
                self._names.add(token)
        self._behind, self._count = ContinuedText(text, output_so_far.text_len), self.begun
        self._first = True

    def step(self, chunk: Mapping[str, Any]) -> StepOutput:
        """Raises: RequestError, EngineFailed; HandoffFailed, before the first token."""
        s, meta = self._request.sampling, chunk["meta_info"]
        reason = meta["finish_reason"]
        if reason is not None and reason["type"] == "abort":
            return self._aborted(reason)
        tokens: list[int] = chunk["output_ids"]
        finish: FinishReason | None = None if reason is None else reason["type"]
        stop: int | str | None = None
        text = ""
        for at, token in enumerate(tokens, 1):
            self._count += 1
            # With ignore_eos SGLang ignores these as well.
            stops = token in s.stop_token_ids and self._count >= s.min_tokens
            last = stops or (finish == "stop" and at == len(tokens))
            piece, string = self._piece("" if last and not s.include_stop else self._text(token))
            text += piece
            if string is not None or last:
                stop = string if string is not None else token if stops and token != self._tokenizer.eos_id else None
                tokens, finish = tokens[:at], "stop"
                break
        if finish is not None and self._scanner is not None and not isinstance(stop, str):
            text += self._scanner.flush()
        return self._output(meta, StepOutput(self._behind(text), tokens, self._index, finish, stop))

    def _output(self, meta: Mapping[str, Any], step: StepOutput) -> StepOutput:
        s = self._request.sampling
        logprobs: list[Any] | None = None
        if s.logprobs is not None:
            logprobs = token_logprobs(meta, "output", s.logprobs, self._names)[: len(step.tokens)]
        prompt_logprobs: list[TokenLogprob | None] | None = None
        if self._first and self.sampling.prompt_logprobs is not None:
            names = TokenNames(self._tokenizer)
            prompt_logprobs = token_logprobs(meta, "input", self.sampling.prompt_logprobs, names)
        self._first = False
        cached_tokens = min(meta["cached_tokens"], len(self._request.prompt))
        return replace(step, logprobs=logprobs, cached_tokens=cached_tokens, prompt_logprobs=prompt_logprobs)

    def _aborted(self, end: Mapping[str, Any]) -> StepOutput:
        error = refusal(end)
        if error is None:  # its tokens were given before
            return StepOutput("", [], self._index, "abort")
        if self._request.handoff is not None and self._first and error.status >= 500:
            raise HandoffFailed(error.message)
        raise error

    def _piece(self, text: str) -> tuple[str, str | None]:
        """Text that may go out now, and the stop string that ends the answer."""
        if self._scanner is None:
            return text, None
        return self._scanner.push(text, check=self._count > self._request.sampling.min_tokens)
