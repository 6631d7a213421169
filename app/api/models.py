"""The models that this deployment serves: what the API knows of each without asking anybody."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.api.flight import Wishes
from app.errors import ModelNotFound, PromptTooLong, RequestError, SettingsError
from app.ids import PoolId
from app.pools import PoolsFile, Select
from app.routing.table import select
from app.telemetry import Meters
from app.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Model:
    name: str
    pools: tuple[PoolId, ...]  # that answer
    prefill_pools: tuple[PoolId, ...]  # that only compute prompts
    select: Select | None  # which of them, by length and latency target
    tokenizer: Tokenizer
    context_len: int  # tokens, prompt and answer together
    off_loop: int  # characters above which a thread tokenises
    meters: Meters

    def groups(self, tokens: int, wishes: Wishes) -> tuple[tuple[PoolId, ...], ...]:
        """The pools to choose a worker from, for a context of so many tokens; what the table says comes first.

        Raises: RequestError for a target that no table asks about.
        """
        for name, target, table in (
            ("ttft_ms", wishes.ttft_ms, self.select and self.select.prefill),
            ("itl_ms", wishes.itl_ms, self.select and self.select.decode),
        ):
            if target is not None and table is None:
                raise RequestError(
                    f"'routing.{name}': this model's pools are not chosen by it.", param=f"routing.{name}"
                )
        if self.select is None or self.select.decode is None:
            return (self.pools,)
        first = select(self.select.decode, tokens, wishes.itl_ms)
        return ((first,), *((pool,) for pool in self.pools if pool != first))

    def prefill_groups(self, tokens: int, wishes: Wishes) -> tuple[tuple[PoolId, ...], ...]:
        """The same for a prompt of so many tokens and who may compute it for another worker; empty: nobody."""
        if not self.prefill_pools:
            return ()
        if self.select is None or self.select.prefill is None:
            return (self.prefill_pools,)
        first = select(self.select.prefill, tokens, wishes.ttft_ms)
        return ((first,), *((pool,) for pool in self.prefill_pools if pool != first))

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if len(text) <= self.off_loop:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)

    async def encode_chat(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True) -> list[int]:
        """Templates write the special tokens themselves. Raises: RequestError (the template refuses)."""
        text = self.tokenizer.render_chat(messages, add_generation_prompt=add_generation_prompt)
        return await self.encode(text, add_special_tokens=False)

    def check_tokens(self, tokens: list[int]) -> None:
        """Raises: RequestError when there are none, or ids that the model doesn't know."""
        if not tokens:
            raise RequestError("The prompt is empty.", param="prompt")
        if max(tokens) >= self.tokenizer.vocab_size:
            raise RequestError(f"Token ids have to be below {self.tokenizer.vocab_size}.", param="prompt")

    def room(self, prompt: list[int], max_tokens: int | None, param: str) -> int:
        """How many tokens the answer may have. `param`: the request's field that the prompt is of.

        Raises: PromptTooLong, in OpenAI's words: by these, clients choose another model.
        """
        wanted = max(1, max_tokens or 0)
        total = len(prompt) + wanted
        if total <= self.context_len:
            return self.context_len - len(prompt) if max_tokens is None else max_tokens
        limit = f"This model's maximum context length is {self.context_len} tokens. However,"
        if len(prompt) > self.context_len:
            raise PromptTooLong(
                f"{limit} your {param} resulted in {len(prompt)} tokens. Please reduce the length of the {param}.",
                param=param,
            )
        raise PromptTooLong(
            f"{limit} you requested {total} tokens ({len(prompt)} in the {param}, {wanted} in the completion). "
            f"Please reduce the length of the {param} or completion.",
            param=param,
        )


def load_models(declared: PoolsFile, off_loop: int) -> dict[str, Model]:
    """One Model per served name. Raises: SettingsError when its directory can't be read or its pools disagree."""
    models: dict[str, Model] = {}
    for pool_id, pool in declared.pools.items():
        known = models.get(pool.model)
        tokenizer = load_tokenizer(pool.model_dir, pool.chat_template)
        if known is not None and (known.tokenizer is not tokenizer or known.context_len != pool.context_len):
            raise SettingsError(f"pools.{pool_id}: other path, template or length than another pool of {pool.model}")
        ids, prefill_ids = (known.pools, known.prefill_pools) if known else ((), ())
        if pool.role == "prefill":
            prefill_ids = (*prefill_ids, pool_id)
        else:
            ids = (*ids, pool_id)
        models[pool.model] = Model(
            pool.model,
            ids,
            prefill_ids,
            declared.select.get(pool.model),
            tokenizer,
            pool.context_len,
            off_loop,
            Meters(pool.model),
        )
    return models


def find_model(models: Mapping[str, Model], name: str) -> Model:
    """Raises: ModelNotFound."""
    model = models.get(name)
    if model is None:
        raise ModelNotFound(
            f"The model '{name}' is not served here. Served: {', '.join(sorted(models))}.", param="model"
        )
    return model
