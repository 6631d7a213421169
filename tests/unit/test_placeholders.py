"""Placeholders of pictures in a prompt: those that transformers' own processors, which engines ask, would write."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.errors import SettingsError
from app.media.placeholders import PictureFamily, pictures_of, sounds_of
from app.pools.schema import Pool
from app.tokenizing.tokenizer import load_tokenizer
from tests.present import present
from tests.vlm import Kind, random_vlm

# Height and width: square, flat, high, tiny, at the bounds of tiles, odd.
SHAPES = [(112, 112), (60, 200), (300, 117), (1000, 700), (33, 500), (1, 1), (28, 28), (225, 224), (4096, 4095)]


def of(kind: Kind, **given: Any) -> PictureFamily:
    path = random_vlm(kind, weights=False)
    return present(pictures_of(path, load_tokenizer(path, None, "file"), given))


@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_idefics_splits_a_picture_as_its_processor_does(shape: tuple[int, int], splits: bool) -> None:
    """The text is put together here from the processor's rows and columns, and tokenised as a whole."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    path = random_vlm("idefics3", weights=False)
    theirs = Idefics3ImageProcessorPil.from_pretrained(path, do_image_splitting=splits)
    _, rows, columns = theirs.get_number_of_image_patches(*shape)
    pictures = of("idefics3", do_image_splitting=splits)
    tokens = pictures.tokens(*shape)
    assert tokens.count(pictures.token_id) == 16 * (rows * columns + 1)
    text = load_tokenizer(path, None, "file").decode(tokens, skip_special_tokens=False)
    tile_markers = [part.partition("<image>")[0] for part in text.split("<fake_token_around_image>")]
    tiles = [f"<row_{r + 1}_col_{c + 1}>" for r in range(rows) for c in range(columns)]
    assert tile_markers == ["", *tiles, "<global-img>", ""]
    assert text.count("\n") == (rows + 1 if rows else 0)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != (1, 1)] + [(20, 3999)])
def test_qwen_has_a_token_for_each_square_of_patches(shape: tuple[int, int]) -> None:
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    height, width = smart_resize(*shape, factor=28, min_pixels=3136, max_pixels=100_352)
    pictures = of("qwen2_vl")
    assert pictures.tokens(*shape) == [pictures.token_id] * (height // 28 * (width // 28))


def test_an_engines_own_settings_of_the_processor_count() -> None:
    """The settings are those that the pool's args give to the engine."""
    assert len(of("qwen2_vl", max_pixels=3136 * 4).tokens(500, 500)) < len(of("qwen2_vl").tokens(500, 500))
    assert of("idefics3", images_kwargs={"do_image_splitting": False}) != of("idefics3")


def test_a_shape_that_the_model_refuses_is_refused_before_it() -> None:
    with pytest.raises(ValueError, match="200 times"):
        of("qwen2_vl").tokens(10, 2001)


def test_a_model_of_another_family_takes_no_pictures(tmp_path: Path) -> None:
    """A model of the family whose files don't say which token stands for them is not served."""
    tokenizer = load_tokenizer(random_vlm("idefics3", weights=False), None, "file")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert pictures_of(tmp_path, tokenizer, {}) is None
    (tmp_path / "config.json").write_text('{"model_type": "idefics3"}')
    with pytest.raises(SettingsError, match="image_token_id"):
        pictures_of(tmp_path, tokenizer, {})
    (tmp_path / "config.json").write_text('{"model_type": "idefics3", "image')
    with pytest.raises(SettingsError, match=r"config\.json: .*Unterminated"):
        pictures_of(tmp_path, tokenizer, {})


def test_a_model_that_sees_has_its_length_with_its_language_part() -> None:
    pool = Pool(model="m", engine="mock", path=random_vlm("idefics3", weights=False))
    assert pool.context_len == 4096


def test_qwen_audio_has_as_many_tokens_as_its_processor_counts() -> None:
    """The lengths are at the bounds of spectra, and of what its encoder takes."""
    from transformers import WhisperFeatureExtractor

    path = random_vlm("qwen2_audio", weights=False)
    theirs = WhisperFeatureExtractor.from_pretrained(path)
    sounds = present(sounds_of(path))
    for samples in (481, 640, 641, 800, 801, 15_999, 16_000, 16_001, 16_160, 40_001, 479_999, 480_000):
        features = theirs(
            np.zeros(samples, np.float32), sampling_rate=16_000, padding="max_length", return_attention_mask=True
        )
        length = int(features["attention_mask"].sum())
        assert sounds.tokens(samples) == [sounds.token_id] * ((((length - 1) // 2 + 1) - 2) // 2 + 1), samples
    for samples, message in ((480_001, "at most 30 s"), (320, "too short")):
        with pytest.raises(ValueError, match=message):
            sounds.tokens(samples)


def test_a_model_that_hears_has_to_say_how(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert sounds_of(tmp_path) is None
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_audio"}')
    with pytest.raises(SettingsError, match="audio_token"):
        sounds_of(tmp_path)
