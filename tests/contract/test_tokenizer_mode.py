"""`tokenizer_mode: engine`: tokenizers that are in no tokenizer.json, as the engines read them."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.dispatch.models import load_models
from app.errors import SettingsError
from app.pools import Pool, PoolsFile

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##ly", "!"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of BERT's time."""
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 64}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return tmp_path


def pool(folder: Path, **fields: Any) -> Pool:
    return Pool(model="m", engine="vllm", task="embed", path=folder, **fields)


def test_a_model_without_a_tokenizer_json_is_read_as_its_engine_reads_it(folder: Path) -> None:
    import transformers

    declared = PoolsFile.model_validate({"pools": {"p": pool(folder, tokenizer_mode="engine")}})
    ours, theirs = load_models(declared)["m"].tokenizer, transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("Hello worldly!", "", "hello [MASK] there"):
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.special["unk_token"] == "[UNK]"
    assert ours.vocab_size == len(WORDS)


def test_without_it_such_a_model_is_refused_with_the_key_that_helps(folder: Path) -> None:
    with pytest.raises(SettingsError, match="tokenizer_mode: engine"):
        load_models(PoolsFile.model_validate({"pools": {"p": pool(folder)}}))


def test_what_no_engine_can_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 64}))
    with pytest.raises(SettingsError, match=f"path={tmp_path}: no tokenizer there"):
        load_models(PoolsFile.model_validate({"pools": {"p": pool(tmp_path, tokenizer_mode="engine")}}))
