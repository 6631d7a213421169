"""One request on a loaded TensorRT-LLM: a request of the engine's own for each choice."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace
from tensorrt_llm.conversation_params import ConversationParams
from tensorrt_llm.disaggregated_params import DisaggregatedParams
from tensorrt_llm.executor.result import CompletionOutput
from tensorrt_llm.llmapi.llm import LLM, RequestOutput
from tensorrt_llm.scheduling_params import SchedulingParams

from app.engines.base import GenerateRequest, Prefilled, StepOutput
from app.engines.streams import merged
from app.engines.trtllm.adapters import TrtllmAdapters
from app.engines.trtllm.convert import finish_reason, priority, sampling_params
from app.engines.trtllm.handoff import TrtllmLender, keeping
from app.engines.trtllm.media import Eyes, salt_of_pictures
from app.engines.trtllm.reader import ChoiceReader
from app.engines.trtllm.steering import Steering
from app.engines.trtllm.submitted import Submitted
from app.errors import AdapterFailed, EngineFailed, HandoffFailed, RequestError
from app.messages.job import KvTransfer, PartialOutput, Sampling
from app.tokenizing.tokenizer import Tokenizer

_STRIDE = 0x9E3779B9  # between the seeds of an answer that is taken over after other numbers of tokens
_NOTHING = PartialOutput([])


@dataclass
class Loaded:
    """The engine, and what requests have to know of it."""

    llm: LLM
    tokenizer: Tokenizer
    ends: Sequence[int]  # tokens besides the tokenizer's own that end an answer, by the model's generation_config.json
    vocabulary: int  # of the model, which may have more than the tokenizer
    context_len: int
    ranks: int
    block_bytes: int
    block_size: int
    lender: TrtllmLender | None  # of pools that hand KV over
    adapters: TrtllmAdapters
    eyes: Eyes | None  # None: the model takes no pictures
    prefill_tokens: int = 0
    pulled_tokens: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # requests that are to be aborted when they may be


class Run:
    """A request's choices."""

    def __init__(self, model: Loaded, request: GenerateRequest) -> None:
        self._loaded, self._request = model, request
        self._submitted: list[Submitted] = []
        self._aborted = False
        self._cached: int | None = None  # of the choice that came first: the others find what it computed
        finished_flags = [output.finished for output in request.begun] or [False] * request.sampling.n
        self._indices = [index for index, over in enumerate(finished_flags) if not over]
        self.open = len(self._indices)  # choices that are not finished
        self.running = 0  # of these, such that have begun

    def abort(self) -> None:
        self._aborted = True
        for submission in self._submitted:
            submission.abort()

    async def steps(self) -> AsyncGenerator[StepOutput, None]:
        """Raises: the engine's errors and ours; HandoffFailed before the first step."""
        first, *others = self._indices
        async with aclosing(self._choice(first)) as one:
            yield await anext(one)
            async with aclosing(merged(one, *(self._choice(index) for index in others))) as steps:
                async for step in steps:
                    yield step

    async def prefill(self) -> Prefilled:
        """Raises: the engine's errors and ours."""
        request, runtime = self._request, self._loaded
        s = request.sampling
        if runtime.lender is None:
            raise EngineFailed("This pool's TensorRT-LLM has no cache_transceiver_config.")
        if s.n > 1:
            raise HandoffFailed("TensorRT-LLM goes on behind the first token of one choice only.")
        # With its first token such an answer is over: nobody will come for the KV.
        whole = s.max_tokens == 1 or len(request.prompt) + 1 >= runtime.context_len
        kv_params = None if whole else keeping()
        first_sampling = replace(s, max_tokens=1, min_tokens=min(s.min_tokens, 1))
        steering = _steering(first_sampling, self._stops(s), [], count=0)
        submission = self._submit(request.prompt, first_sampling, steering, kv_params, streaming=False)
        last: CompletionOutput | None = None
        try:
            async with aclosing(submission.updates()) as updates:
                async for update in updates:
                    last = update.outputs[0]
                    self._count(update, len(request.prompt))
        finally:
            submission.leave(runtime.tasks)
        if last is None:
            raise EngineFailed("TensorRT-LLM ended the prefill without an output.")
        # Of a request of this type the reason may also be one that no other has.
        finish = finish_reason(last.finish_reason) if whole or last.finish_reason in ("stop", "cancelled") else None
        reader = ChoiceReader(runtime.tokenizer, request, _NOTHING, [], 0)
        output = reader.read(last, finish, self._cached or 0)
        cached_tokens = self._cached or 0
        if output is None:
            raise EngineFailed("TensorRT-LLM ended the prefill without a token.")
        if kv_params is None or output.finish == "abort":
            return Prefilled(output, None, cached_tokens)
        return Prefilled(
            output, runtime.lender.lend(kv_params, last.disaggregated_params, len(request.prompt)), cached_tokens
        )

    async def _choice(self, index: int) -> AsyncGenerator[StepOutput, None]:
        """Its steps behind what is out."""
        request, runtime = self._request, self._loaded
        s, output_so_far = request.sampling, request.begun[index] if request.begun else _NOTHING
        pulls = self._pulling() if request.handoff is not None else None
        # A grammar begins with the answer, so the answer has to begin again; and so it does behind KV that was pulled.
        again = output_so_far.tokens if pulls is not None or s.grammar is not None else []
        prompt = list(request.prompt) if again else [*request.prompt, *output_so_far.tokens]
        sampling = rest(s, PartialOutput([]) if again else output_so_far, index, runtime.context_len - len(prompt))
        steering = _steering(sampling, self._stops(s), again if pulls is None else [], count=len(again) if pulls else 0)
        reader = ChoiceReader(runtime.tokenizer, request, output_so_far, again, index)
        submission = self._submit(prompt, sampling, steering, pulls, streaming=s.prompt_logprobs is None)
        began = False
        try:
            async with aclosing(submission.updates()) as updates:
                async for update in updates:
                    output = update.outputs[0]
                    if not began:
                        began = True
                        self.running += 1
                        self._count(update, len(prompt), pulled=pulls is not None)
                    step = reader.read(output, finish_reason(output.finish_reason), self._cached or 0)
                    if step is None:
                        continue
                    transfer, pulls = self._transfer() if pulls is not None else None, None
                    if step.finish is not None:
                        self.open -= 1
                        self.running -= 1
                    yield replace(step, pulled=transfer)
                    if step.finish is not None:
                        return
            raise EngineFailed("TensorRT-LLM ended the request without a reason.")
        except (RequestError, HandoffFailed, AdapterFailed):
            raise
        except Exception as exc:
            if pulls is not None:  # nothing has come yet: the prompt can be computed here
                raise HandoffFailed(f"TensorRT-LLM did not go on with the KV: {exc}") from exc
            raise
        finally:
            submission.leave(runtime.tasks)

    def _pulling(self) -> DisaggregatedParams:
        handoff = self._request.handoff
        if self._loaded.lender is None or handoff is None:
            raise HandoffFailed("This pool's TensorRT-LLM has no cache_transceiver_config.")
        return self._loaded.lender.pulling(handoff, self._request)

    def _stops(self, s: Sampling) -> list[int]:
        return [*s.stop_token_ids, *(() if s.ignore_eos else self._loaded.ends)]

    def _submit(
        self,
        prompt: list[int],
        s: Sampling,
        steering: Steering | None,
        prefill_params: DisaggregatedParams | None,
        *,
        streaming: bool,
    ) -> Submitted:
        """Raises: RequestError, AdapterFailed."""
        request, runtime = self._request, self._loaded
        params = sampling_params(
            s,
            eos=runtime.tokenizer.eos_id,
            stops=self._stops(s),
            prompt_len=len(request.prompt),
            vocabulary=runtime.vocabulary,
            steering=steering,
        )
        adapter = runtime.adapters.find(request.adapter)
        rank = SchedulingParams(attention_dp_rank=request.rank, attention_dp_relax=False) if runtime.ranks > 1 else None
        session = request.session
        pulls = prefill_params is not None and prefill_params.request_type == "generation_only"
        inputs: list[int] | dict[str, Any] = prompt
        if request.media and runtime.eyes is None:
            raise RequestError("This model takes no pictures.")
        if request.media and runtime.eyes is not None and not pulls:  # whose KV has them
            inputs = runtime.eyes.prompt(prompt, request.media)
        try:
            result = runtime.llm.generate_async(
                inputs,
                params,
                lora_request=adapter,
                streaming=streaming,
                disaggregated_params=prefill_params,
                scheduling_params=rank,
                conversation_params=ConversationParams(conversation_id=session) if session else None,
                cache_salt=salt_of_pictures(request.cache_salt, request.media) if pulls else request.cache_salt,
                priority=priority(request.priority),
                trace_headers=request.trace_headers,
            )
        except ValueError as exc:
            raise RequestError(str(exc)) from exc
        submission = Submitted(result, pulls=pulls)
        self._submitted.append(submission)
        if self._aborted:  # before this choice began
            submission.abort()
        return submission

    def _count(self, update: RequestOutput, prompt_len: int, *, pulled: bool = False) -> None:
        cached_tokens = 0 if pulled else min(update.cached_tokens or 0, prompt_len)
        if pulled:
            self._loaded.pulled_tokens += prompt_len
        else:
            self._loaded.prefill_tokens += prompt_len - cached_tokens
        if self._cached is None:
            self._cached = min(cached_tokens, len(self._request.prompt))

    def _transfer(self) -> KvTransfer:
        """The transfer of a whole prompt, without its time: TensorRT-LLM tells neither."""
        tokens = len(self._request.prompt)
        return KvTransfer(tokens, -(-tokens // self._loaded.block_size) * self._loaded.block_bytes, 0.0)


def rest(s: Sampling, beginning: PartialOutput, index: int, room: int) -> Sampling:
    """Sampling for the rest of a choice, behind `beginning`, where `room` tokens still fit."""
    out = len(beginning.tokens)
    return replace(
        s,
        n=1,
        max_tokens=min(s.max_tokens - out, room),
        min_tokens=max(0, s.min_tokens - out),
        seed=None if s.seed is None else (s.seed + index + out * _STRIDE) % 2**63,
        prompt_logprobs=None if out else s.prompt_logprobs,
    )


def _steering(s: Sampling, stops: Sequence[int], beginning: Sequence[int], count: int) -> Steering | None:
    return Steering(beginning, stops, s.min_tokens, count) if beginning or (stops and s.min_tokens > count) else None
