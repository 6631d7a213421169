"""A form's texts as the values that a JSON body would have: the schema then names what is wrong."""

import re

_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?", re.ASCII)
_NUMBERS = frozenset(
    """
    fps frequency_penalty guidance_scale max_tokens min_p min_tokens n num_inference_steps output_compression
    partial_images presence_penalty priority repetition_penalty seed strength temperature timeout top_k top_p
    """.split()
)
_TRUTHS = {"true": True, "false": False}


def form_value(name: str, text: str) -> str | int | float | bool:
    """`name`: of the field."""
    if name in _NUMBERS and _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return _TRUTHS.get(text.lower(), text) if name == "stream" else text
