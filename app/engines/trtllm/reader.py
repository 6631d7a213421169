"""One choice's tokens, read behind what was read before: its text, and what ends it.

TensorRT-LLM is asked for tokens only: it knows stop strings as tokens, and would not find one that begins in the middle
of a token.
"""

from collections.abc import Sequence
from typing import Any

from tensorrt_llm.executor.result import CompletionOutput

from app.engines.base import GenerateRequest, StepOutput
from app.engines.resume import ContinuedText
from app.engines.stops import StopScanner
from app.engines.token_text import TokenText
from app.engines.trtllm.convert import token_logprob
from app.errors import EngineFailed
from app.messages.events import TokenLogprob
from app.messages.job import PartialOutput
from app.messages.kinds import FinishReason
from app.tokenizing.token_names import TokenNames
from app.tokenizing.tokenizer import Tokenizer


class ChoiceReader:
    """Reader of one choice. The tokens of `beginning` are out; those of `again` are made once more."""

    def __init__(
        self, tokenizer: Tokenizer, request: GenerateRequest, beginning: PartialOutput, again: Sequence[int], index: int
    ) -> None:
        self._tokenizer, self._request, self._again, self._index = tokenizer, request, list(again), index
        s = self._sampling = request.sampling
        self._decode = TokenText(tokenizer.raw, request.prompt, special=s.special_tokens)
        self._scanner = StopScanner(s.stop, include=s.include_stop) if s.stop else None
        text = "".join(self._decode(token) for token in beginning.tokens)
        if self._scanner is not None:
            text, _ = self._scanner.push(text, check=False)  # had one been there, it would have been the end
        self._names = TokenNames(tokenizer)
        for token in () if s.logprobs is None else beginning.tokens[: len(beginning.tokens) - len(again)]:
            self._names.add(token)
        self._behind = ContinuedText(text, beginning.text_len)
        self._count = len(beginning.tokens)  # of the answer's tokens
        self._begun = bool(beginning.tokens)
        self._seen = 0  # of those that this engine made

    def read(self, output: CompletionOutput, finish: FinishReason | None, cached_tokens: int) -> StepOutput | None:
        """The output that has come since the last time; None: nothing.

        Raises: EngineFailed when the answer doesn't begin with `again`.
        """
        seen_count, s = self._seen, self._sampling
        tokens = list(output.token_ids[seen_count:])
        self._seen += len(tokens)
        stop = output.stop_reason if finish == "stop" else None
        if finish == "stop":  # the token that ended it is not always there
            end_token = stop if isinstance(stop, int) else self._tokenizer.eos_id
            if end_token is not None and tokens[-1:] != [end_token]:
                tokens.append(end_token)
        logprobs = None if s.logprobs is None else self._logprobs(tokens, output.logprobs[seen_count:], s.logprobs)
        known_count = self._check_again(tokens, seen_count, over=finish in ("stop", "length"))
        text, count, stop_string = self._text(tokens[known_count:], ends=finish == "stop")
        if stop_string is not None:
            finish, stop = "stop", stop_string
        elif finish is not None and self._scanner is not None:
            text += self._behind(self._scanner.flush())
        if not count and finish is None:
            return None
        return StepOutput(
            text,
            tokens[known_count : known_count + count],
            index=self._index,
            finish=finish,
            stop=stop,
            logprobs=None if logprobs is None else logprobs[known_count : known_count + count],
            cached_tokens=cached_tokens,
            prompt_logprobs=self._prompt_logprobs(output.prompt_logprobs),
        )

    def _check_again(self, tokens: list[int], start: int, *, over: bool) -> int:
        """Number of the tokens that are out already. Raises: EngineFailed."""
        expected_tokens = self._again[start : start + len(tokens)]
        if tokens[: len(expected_tokens)] != expected_tokens or (over and start + len(tokens) < len(self._again)):
            raise EngineFailed("TensorRT-LLM did not begin the answer with what is out of it.")
        return len(expected_tokens)

    def _text(self, tokens: list[int], *, ends: bool) -> tuple[str, int, str | None]:
        """Text that may go out now, the number of its tokens, and the stop string that ended the answer.

        `ends`: the last token ended the answer.
        """
        output = ""
        for count, token in enumerate(tokens, 1):
            self._count += 1
            silent = ends and count == len(tokens) and not self._sampling.include_stop
            text, stop_string = "" if silent else self._decode(token), None
            if self._scanner is not None:
                text, stop_string = self._scanner.push(text, check=self._count > self._sampling.min_tokens)
            output += self._behind(text)
            if stop_string is not None:
                return output, count, stop_string
        return output, len(tokens), None

    def _logprobs(self, tokens: list[int], logprobs: Sequence[Any], top: int) -> list[TokenLogprob]:
        entries = [*logprobs, *[None] * (len(tokens) - len(logprobs))]
        pairs = zip(tokens, entries, strict=False)
        return [token_logprob(self._names, token, entry, top) for token, entry in pairs]

    def _prompt_logprobs(self, logprobs: Sequence[Any] | None) -> list[TokenLogprob | None] | None:
        """Raises: EngineFailed where they are not one for each token."""
        top, prompt = self._sampling.prompt_logprobs, self._request.prompt
        if top is None or self._begun:  # they came with the first token
            return None
        entries = list(zip(prompt, logprobs or (), strict=False))
        if len(entries) < len(prompt) or any(entry and token not in entry for token, entry in entries):
            raise EngineFailed("TensorRT-LLM did not give the logprobs of each prompt token.")
        names = TokenNames(self._tokenizer)
        pairs = [(token_logprob(names, token, entry or {}, top), entry) for token, entry in entries]
        return [logprob if entry else None for logprob, entry in pairs]
