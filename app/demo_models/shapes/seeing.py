"""The model that sees, put together: SmolLM2's directory and `eyes.safetensors` make a Hugging Face directory."""

import json
from pathlib import Path
from typing import Any

WEIGHTS = Path(__file__).with_name("eyes.safetensors")
EDGE = 112  # pixels that the vision tower sees, each way
PATCH = 14
PICTURE_TOKENS = (EDGE // PATCH // 2) ** 2  # the connector joins 2 x 2 patches
VISION: dict[str, Any] = {
    "model_type": "idefics3_vision",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "image_size": EDGE,
    "patch_size": PATCH,
}

_TILES = 8  # a picture can be cut into 8 x 8 tiles, each seen as a picture
_MARKERS = (
    "<fake_token_around_image>",
    "<image>",
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{col}>" for row in range(1, _TILES + 1) for col in range(1, _TILES + 1)),
)
# SmolLM2's own template; what is new is `content` as a list: its pictures first, then its text.
_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{{ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def prepare(smollm2: Path, dest: Path, tiles: int = 1) -> None:
    """Write the model's directory to `dest`.

    With `tiles` above 1, a picture is enlarged until its longer side is `tiles` × 112 pixels, and cut into squares
    of 112, which the model sees beside the whole: 8 make 1,040 picture tokens of a square picture.
    """
    from safetensors.torch import load_file

    words = tokenizer(smollm2)
    model = seeing_model(smollm2, words)
    unknown = model.load_state_dict(load_file(WEIGHTS), strict=False).unexpected_keys
    if unknown:
        raise ValueError(f"{WEIGHTS} does not fit the model: {unknown[0]}")
    model.save_pretrained(dest)
    (dest / "model.safetensors").chmod(0o644)  # transformers makes it private
    words.save_pretrained(dest)
    half = [0.5, 0.5, 0.5]
    pictures = {
        "image_processor_type": "Idefics3ImageProcessorPil",  # not torchvision's
        "processor_class": "Idefics3Processor",
        "do_image_splitting": tiles > 1,
        "size": {"longest_edge": tiles * EDGE},
        "max_image_size": {"longest_edge": EDGE},
        "do_pad": True,
        "do_convert_rgb": True,
        "resample": 3,  # bicubic: torchvision, if the engine uses that, has no Lanczos for CPUs
        "image_mean": half,
        "image_std": half,
    }
    (dest / "preprocessor_config.json").write_text(json.dumps(pictures, indent=2))
    processor = {"processor_class": "Idefics3Processor", "image_seq_len": PICTURE_TOKENS}
    (dest / "processor_config.json").write_text(json.dumps(processor, indent=2))


def tokenizer(smollm2: Path) -> Any:
    """SmolLM2's, with Idefics3's markers behind its vocabulary."""
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(smollm2)
    words.add_special_tokens({"additional_special_tokens": list(_MARKERS)})
    words.chat_template = _TEMPLATE
    return words


def seeing_model(smollm2: Path, words: Any) -> Any:
    """Idefics3 in bfloat16, with SmolLM2's weights unchanged, and eyes that have not learned anything yet."""
    import torch
    from transformers import AutoModelForCausalLM, Idefics3Config, Idefics3ForConditionalGeneration

    language = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.bfloat16)
    vocabulary_size = language.config.vocab_size
    language.resize_token_embeddings(-(-len(words) // 64) * 64, mean_resizing=False)
    with torch.no_grad():  # the markers mean nothing: the mean of all words is never the likeliest next one
        table = language.model.embed_tokens.weight
        table[vocabulary_size:] = table[:vocabulary_size].float().mean(0).to(table.dtype)
    config = Idefics3Config(
        text_config=language.config.to_dict(),
        vision_config=VISION,
        image_token_id=words.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        tie_word_embeddings=True,
        pad_token_id=words.pad_token_id,
    )
    model = Idefics3ForConditionalGeneration(config).to(torch.bfloat16)
    model.model.text_model.load_state_dict(language.model.state_dict())
    model.tie_weights()
    model.generation_config = language.generation_config
    return model
