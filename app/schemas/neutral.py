"""Parameters of OpenAI's and vLLM's that are not supported, each with its neutral values: those that change no answer.

Many clients send them by default, so every endpoint accepts them. Other values are refused by the parameter's name.
null is always neutral.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, create_model
from pydantic_core import core_schema

B = TypeVar("B", bound=BaseModel)

NOT_SUPPORTED = "not_supported"  # the type of pydantic's error

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # OpenAI's, of chat and text completions.
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),  # there are no functions to call: the older name of tools
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "max_completion_tokens": (),
    "max_tokens": (),
    "messages": (),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt": (),
    "prompt_cache_options": ({}, {"mode": "implicit"}),
    "prompt_cache_retention": ("in_memory",),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "stop": ([],),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),  # there are no tools to choose from
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
    # OpenAI's, of Responses.
    "access_programs": (),
    "background": (False,),
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "include": ([],),
    "input": (),
    "instructions": (),
    "max_output_tokens": (),
    "max_tool_calls": (),
    "previous_response_id": (),
    "reasoning": ({}, {"effort": "none"}, {"summary": "auto"}),
    "text": ({}, {"format": {"type": "text"}}, {"verbosity": "medium"}),
    "truncation": ("disabled",),
    # vLLM's, of this year or before.
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),  # a conversation's template writes them itself
    "allowed_token_ids": (),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "early_stopping": (False,),
    "ec_transfer_params": (),
    "enable_response_messages": (False,),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "length_penalty": (1.0,),
    "logprob_token_ids": ([],),
    "media_io_kwargs": ({},),
    "min_p": (0.0,),
    "min_tokens": (0,),
    "mm_payload": ("tensors",),
    "mm_processor_kwargs": ({},),
    "previous_input_messages": ([],),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_detection": (),
    "repetition_penalty": (1.0,),
    "request_id": (),
    "return_mm_kwargs": (False,),
    "return_prompt_text": (False,),
    "return_token_ids": (False,),
    "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (False,),
    "routed_experts_prompt_start": (0,),
    "session_id": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stream_interval": (1,),
    "structural_tag": (),
    "structured_outputs": (),
    "thinking_token_budget": (),
    "top_k": (-1, 0),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
}

# Of an assistant's message that comes back as OpenAI or vLLM sent it.
NEUTRAL_OF_MESSAGES: Mapping[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
}

NEUTRAL_OF_TOKENIZE: Mapping[str, tuple[Any, ...]] = {
    name: NEUTRAL[name]
    for name in (
        "chat_template",
        "media_io_kwargs",
        "mm_processor_kwargs",
    )
}

# Of vLLM's and others' endpoints that make vectors.
NEUTRAL_OF_ENCODING: Mapping[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "chat_template_kwargs": ({},),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "instruction": (),
    "max_tokens_per_doc": (0,),
    "max_tokens_per_query": (0,),
    "normalize": (True,),
    "padding": ("do_not_pad",),
    "use_activation": (True,),
} | {
    name: NEUTRAL[name]
    for name in (
        "mm_processor_kwargs",
        "request_id",
        "truncate_prompt_tokens",
        "truncation_side",
    )
}

# OpenAI's, of pictures.
NEUTRAL_OF_IMAGES: Mapping[str, tuple[Any, ...]] = {
    "background": ("auto", "opaque"),
    "complexity": (),
    "frame_count": (1,),
    "frame_duration_ms": (),
    "input_fidelity": ("low",),
    "moderation": ("auto", "low"),
    "svg": (),
}

NEUTRAL_OF_VIDEOS: Mapping[str, tuple[Any, ...]] = {"input_reference": ()}


@dataclass(frozen=True)
class Refused:
    """A field's annotation: values that its type doesn't take are refused as not supported.

    `what`: words before the value in the error, such as "content parts of type"; empty: the field's name is enough.
    """

    what: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.custom_error_schema(
            handler(source),
            NOT_SUPPORTED,
            custom_error_message="Not supported",
            custom_error_context={"what": self.what},
        )


@dataclass(frozen=True, eq=False)  # `Annotated` takes what is equal for the same, as 1 and True would be
class _OneOf:
    """The values that a field takes, of whatever types. `typing.Literal` has no lists, objects or fractions."""

    values: tuple[Any, ...]

    def __get_pydantic_json_schema__(
        self, _core: core_schema.CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Only null is declared: generators of clients leave out endpoints with an enum of lists or objects."""
        others = ", ".join(f"`{json.dumps(value)}`" for value in self.values if value is not None)
        return {
            "type": "null",
            "description": "Not supported" + (f", except for what changes nothing: {others}." if others else "."),
        }

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.literal_schema(list(self.values))


def neutral(table: Mapping[str, tuple[Any, ...]] = NEUTRAL) -> Callable[[type[B]], type[B]]:
    """Decorates a schema: it also takes the neutral values of these parameters, except for those that are its own."""

    def extended(schema: type[B]) -> type[B]:
        fields: dict[str, Any] = {
            name: (
                Annotated[Any, _OneOf((None, *values)), Refused()],
                None,
            )
            for name, values in table.items()
            if name not in schema.model_fields
        }
        return create_model(
            schema.__name__, __base__=schema, __module__=schema.__module__, __doc__=schema.__doc__, **fields
        )

    return extended
