"""Parts of which tiny models that see or hear are made: configuration, tokenizer and processor."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

Fields = Mapping[str, Any]  # of a configuration, or arguments of a class

TEXT = {
    "hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "num_hidden_layers": 2, "max_position_embeddings": 16384, "tie_word_embeddings": True,
}  # fmt: skip
EYES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}SIGN{% elif part['type'] == 'audio' %}SOUND{% elif part['type'] == 'video' %}FILM\
{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# Arguments of processors that their parts are, by how the parts' classes end.
_ARGUMENTS = {
    "ImageProcessor": "image_processor", "VideoProcessor": "video_processor", "FeatureExtractor": "feature_extractor",
}  # fmt: skip


class Id(str):
    """A token whose id stands in its place."""

    __slots__ = ()


class Above(int):
    """A number that is counted from the end of the vocabulary."""


class Text(dict[str, Any]):
    """Fields of the language model, beside `TEXT` and what the tokenizer says."""


def ids(tokens: Mapping[str, str]) -> dict[str, Id]:
    """{"image_token": "<image>"} → {"image_token_id": Id("<image>")}"""
    return {f"{name}_id": Id(token) for name, token in tokens.items()}


@dataclass(frozen=True)
class Seeing:
    """A type of models. Classes are of transformers, or `module:class`."""

    stem: str  # of its classes' names
    tokens: Mapping[str, str]  # added to the vocabulary, by the attributes that processors ask the tokenizer for
    sign: str  # of a picture, in its template
    fields: Fields  # of its configuration
    parts: Mapping[str, Fields] = field(default_factory=dict)  # of its processor: classes, and their arguments
    options: Fields = field(default_factory=dict)  # of its processor
    limits: Mapping[str, int] = field(default_factory=lambda: {"image": 4})
    dtype: str = "float32"
    sound: str = ""  # its sign, in its template
    film: str = ""  # of a video, in its template; "": this shows none, and the prompt has what vLLM calls it
    large: str = ""  # why it can't be made tiny, so that only its processor is asked
    config: str = ""  # the class of its configuration, if it isn't called as the others
    processor: str | None = ""  # likewise; None: vLLM makes it of the configuration
    ending: str = "ForConditionalGeneration"  # of the model's own class

    def made(self, tokenizer: Any, text: Fields) -> tuple[Any, Any]:
        """Configuration and processor. `text`: fields of the language model."""
        fields = _resolved(self.fields, text, tokenizer.convert_tokens_to_ids)
        config = _class(self.config or f"{self.stem}Config")(**fields)
        if self.processor is None:
            return config, None
        parts = {}
        for name, arguments in self.parts.items():
            (argument,) = (argument for ending, argument in _ARGUMENTS.items() if name.endswith(ending))
            parts[argument] = _class(name)(**arguments)
        processor = _class(self.processor or f"{self.stem}Processor")
        return config, processor(**parts, tokenizer=tokenizer, **self.options)


def _class(name: str) -> Any:
    module, _, of = name.rpartition(":")
    return getattr(import_module(module or "transformers"), of)


def _resolved(value: Any, text: Fields, id_of: Any) -> Any:
    match value:
        case Id():
            return id_of(str(value))
        case Above():
            return text["vocab_size"] + value
        case dict():
            fields = {name: _resolved(one, text, id_of) for name, one in value.items()}
            return {**text, **fields} if isinstance(value, Text) else fields
        case _:
            return value


def write(model: Seeing, path: Path, base: Path, *, weights: bool = False) -> None:
    """`base`: with the tokenizer that the model gets, with further tokens.

    With `weights`, random ones, it tells pictures apart; those that vLLM makes up are nearly nothing.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_special_tokens({"additional_special_tokens": [*model.tokens.values()]})
    for attribute, token in model.tokens.items():
        setattr(tokenizer, attribute, token)
        setattr(tokenizer, f"{attribute}_id", tokenizer.convert_tokens_to_ids(token))
    tokenizer.init_kwargs |= {**model.tokens, "extra_special_tokens": {**model.tokens}}
    own = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config, processor = model.made(tokenizer, TEXT | own | {"vocab_size": -(-len(tokenizer) // 64) * 64})
    tokenizer.chat_template = (
        TEMPLATE.replace("SIGN", model.sign).replace("SOUND", model.sound).replace("FILM", model.film)
    )
    config.architectures, config.dtype = [model.stem + model.ending], model.dtype
    path.mkdir()
    config.save_pretrained(path)
    if processor is not None:
        processor.chat_template = tokenizer.chat_template
        processor.save_pretrained(path)
    tokenizer.save_pretrained(path)
    if weights:
        _save_weights(config, path)


def _save_weights(config: Any, path: Path) -> None:
    import torch

    torch.manual_seed(0)
    model = _class(config.architectures[0])(config).float()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(path)
    if config.vision_config.model_type == "siglip_vision_model":
        _rename(path / "model.safetensors")


def _rename(path: Path) -> None:
    """Gives the weights the names that published ones have: transformers 5 leaves out a level."""
    from safetensors.torch import load_file, save_file

    weights = {name.replace("vision_tower.", "vision_tower.vision_model."): t for name, t in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})
