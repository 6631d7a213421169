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
from app.messages import FinishReason, PartialOutput, TokenLogprob
from app.token_names import TokenNames
from app.tokenizer import Tokenizer


class ChoiceReader:
    """Of the answer's tokens `begun` are out; those of `again` are made once more."""

    def __init__(
        self, tokenizer: Tokenizer, request: GenerateRequest, begun: PartialOutput, again: Sequence[int], index: int
    ) -> None:
        self._tokenizer, self._request, self._again, self._index = tokenizer, request, list(again), index
        s = self._sampling = request.sampling
        self._decode = TokenText(tokenizer.raw, request.prompt, special=s.special_tokens)
        self._scanner = StopScanner(s.stop, include=s.include_stop) if s.stop else None
        made = "".join(self._decode(token) for token in begun.tokens)
        if self._scanner is not None:
            made, _ = self._scanner.push(made, check=False)  # had one been there, it would have been the end
        self._names = TokenNames(tokenizer)
        for token in () if s.logprobs is None else begun.tokens[: len(begun.tokens) - len(again)]:
            self._names.add(token)
        self._behind = ContinuedText(made, begun.text_len)
        self._count = len(begun.tokens)  # of the answer's tokens
        self._begun = bool(begun.tokens)
        self._seen = 0  # of those that this engine made

    def read(self, made: CompletionOutput, finish: FinishReason | None, cached: int) -> StepOutput | None:
        """What has come since the last time; None: nothing.

        Raises: EngineFailed when the answer doesn't begin with `again`.
        """
        seen, s = self._seen, self._sampling
        tokens = list(made.token_ids[seen:])
        self._seen += len(tokens)
        stop = made.stop_reason if finish == "stop" else None
        if finish == "stop":  # the token that ended it is not always there
            ended = stop if isinstance(stop, int) else self._tokenizer.eos_id
            if ended is not None and tokens[-1:] != [ended]:
                tokens.append(ended)
        logprobs = None if s.logprobs is None else self._logprobs(tokens, made.logprobs[seen:], s.logprobs)
        known = self._check_again(tokens, seen, over=finish in ("stop", "length"))
        text, kept, found = self._text(tokens[known:], ends=finish == "stop")
        if found is not None:
            finish, stop = "stop", found
        elif finish is not None and self._scanner is not None:
            text += self._behind(self._scanner.flush())
        if not kept and finish is None:
            return None
        return StepOutput(
            text,
            tokens[known : known + kept],
            self._index,
            finish,
            stop,
            None if logprobs is None else logprobs[known : known + kept],
            cached,
            self._prompt_logprobs(made.prompt_logprobs),
        )

    def _check_again(self, tokens: list[int], seen: int, *, over: bool) -> int:
        """How many of the tokens are out already. Raises: EngineFailed."""
        known = self._again[seen : seen + len(tokens)]
        if tokens[: len(known)] != known or (over and seen + len(tokens) < len(self._again)):
            raise EngineFailed("TensorRT-LLM did not begin the answer with what is out of it.")
        return len(known)

    def _text(self, tokens: list[int], *, ends: bool) -> tuple[str, int, str | None]:
        """What may go out now, of how many tokens, and the stop string that ended it all.

        `ends`: the last token ended the answer.
        """
        said = ""
        for kept, token in enumerate(tokens, 1):
            self._count += 1
            silent = ends and kept == len(tokens) and not self._sampling.include_stop
            text, found = "" if silent else self._decode(token), None
            if self._scanner is not None:
                text, found = self._scanner.push(text, check=self._count > self._sampling.min_tokens)
            said += self._behind(text)
            if found is not None:
                return said, kept, found
        return said, len(tokens), None

    def _logprobs(self, tokens: list[int], found: Sequence[Any], top: int) -> list[TokenLogprob]:
        given = [*found, *[None] * (len(tokens) - len(found))]
        pairs = zip(tokens, given, strict=False)
        return [token_logprob(self._names, token, entry, top) for token, entry in pairs]

    def _prompt_logprobs(self, found: Sequence[Any] | None) -> list[TokenLogprob | None] | None:
        """Raises: EngineFailed where they are not one for each token."""
        top, prompt = self._sampling.prompt_logprobs, self._request.prompt
        if top is None or self._begun:  # they came with the first token
            return None
        entries = list(zip(prompt, found or (), strict=False))
        if len(entries) < len(prompt) or any(entry and token not in entry for token, entry in entries):
            raise EngineFailed("TensorRT-LLM did not give the logprobs of each prompt token.")
        names = TokenNames(self._tokenizer)
        shown = [(token_logprob(names, token, entry or {}, top), entry) for token, entry in entries]
        return [made if entry else None for made, entry in shown]
