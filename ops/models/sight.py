"""Parts of which tiny models that see are made."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

TEXT = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": True,
}
EYES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}SIGN{% elif part['type'] == 'audio' %}SOUND{% elif part['type'] == 'video' %}FILM\
{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class Parts(NamedTuple):
    config: Any
    processor: Any  # None: vLLM makes it of the configuration


Fields = dict[str, Any]  # of a configuration
IdOf = Callable[[str], int]  # of a token


class Seeing(NamedTuple):
    name: str  # its class, as configurations name it
    tokens: Mapping[str, str]  # added to the vocabulary, by the attributes that processors ask the tokenizer for
    sign: str  # of a picture, in its template
    parts: Callable[[Any, IdOf, Fields], Parts]
    limits: Mapping[str, int] = {"image": 4}
    dtype: str = "float32"
    sound: str = ""  # its sign, in its template
    film: str = ""  # of a video, in its template; "": this shows none, and the prompt has what vLLM calls it
    large: str = ""  # why it can't be made tiny, so that only its processor is asked
