"""Train the mock engine's tokenizer on this project's own text and write app/engines/mock/model/.

    python ops/models/train_mock_tokenizer.py

The same text gives the same files. Other text gives other token ids, so run it only to change the model.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "app" / "engines" / "mock" / "model"
TEXT = ("README.md", "app/**/*.md", "app/**/*.py", "docs/**/*.md", "ops/**/*.md")
VOCABULARY = 2048
CONTEXT = 8192  # tokens
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = """\
{% for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""


def main() -> None:
    files = sorted({path for pattern in TEXT for path in ROOT.glob(pattern)})
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        special_tokens=[AddedToken(text, special=True) for text in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((path.read_text() for path in files), trainer)
    MODEL.mkdir(exist_ok=True)
    tokenizer.save(str(MODEL / "tokenizer.json"))
    _write("tokenizer_config.json", {"eos_token": "<|im_end|>", "chat_template": TEMPLATE})
    size = tokenizer.get_vocab_size()
    _write("config.json", {"model_type": "mock", "max_position_embeddings": CONTEXT, "vocab_size": size})


def _write(name: str, content: dict[str, object]) -> None:
    (MODEL / name).write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
