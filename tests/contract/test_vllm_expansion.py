"""Expansion of blank pictures by vLLM's own processors: without an engine, for tiny models of real types."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.media.placeholders import pictures_of
from app.tokenizing.tokenizer import load_tokenizer
from ops.models.seeing import SEEING, written
from tests.shallow import shallow_model
from tests.vlm import Kind, random_vlm

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

SIZES = ((60, 200), (300, 117), (448, 448))
Asked = Callable[[Path, dict[str, int]], tuple[Any, Any]]


@pytest.fixture(scope="module")
def asked() -> Asked:
    """A model's configuration and processor, as the engine makes them."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.multimodal import MULTIMODAL_REGISTRY

    def made(path: Path, limits: dict[str, int]) -> tuple[Any, Any]:
        config = EngineArgs(model=str(path), limit_mm_per_prompt=limits, dtype="float32").create_model_config()
        return config, MULTIMODAL_REGISTRY.create_processor(config)

    return made


@pytest.mark.parametrize(("kind", "limits"), [("idefics3", {"image": 4}), ("qwen2_vl", {"image": 4, "video": 0})])
def test_the_families_that_are_known_expand_as_vllms_processor_does(
    asked: Asked, kind: Kind, limits: dict[str, int]
) -> None:
    """Known families need not be asked, so the answer must be the same."""
    from app.engines.vllm.expansion import sign_of, tokens_of

    path = random_vlm(kind)
    family = pictures_of(path, load_tokenizer(path, None, "file"), {})
    config, processor = asked(path, limits)
    sign = sign_of(config, processor, "image")
    assert family is not None
    assert (sign.target, sign.numbered, sign.joins) == ((family.token_id,), False, ())
    for height, width in SIZES:
        tokens = family.tokens(height, width)
        assert tokens_of(processor, sign, (height, width), 0, 1) == tokens
        assert len(tokens) <= sign.most


def test_a_video_is_one_medium_whatever_is_beside_it(asked: Asked) -> None:
    from app.engines.vllm.expansion import expanded_ids, sign_of, tokens_of

    config, processor = asked(random_vlm("qwen2_vl"), {"image": 1, "video": 2})
    sign = sign_of(config, processor, "video")
    assert (len(sign.target), sign.alone, sign.numbered, sign.counted, sign.joins) == (1, False, False, False, ())
    shapes = [(4, 60, 200, 20), (3, 300, 117, 95)]  # frames, height, width, tenths of a second
    alone = [tokens_of(processor, sign, shape, 0, 1) for shape in shapes]
    assert expanded_ids(processor, "video", [*sign.target] * 2, shapes) == alone[0] + alone[1]
    assert len(alone[0]) == len(tokens_of(processor, sign, (2, 60, 200, 20), 0, 1)) * 2, "two frames are one step"
    assert max(map(len, alone)) <= sign.most


@pytest.mark.parametrize(("name", "tokens"), [("llava", 576), pytest.param("gemma3", 260, marks=pytest.mark.media)])
def test_a_sign_is_replaced_by_what_stands_for_a_picture(asked: Asked, tmp_path: Path, name: str, tokens: int) -> None:
    from app.engines.vllm.expansion import sign_of, tokens_of

    path = written(name, tmp_path, shallow_model())
    tokenizer = load_tokenizer(path, None, "file")
    config, processor = asked(path, dict(SEEING[name].limits))
    sign = sign_of(config, processor, "image")
    assert tokenizer.decode([*sign.target], skip_special_tokens=False) == SEEING[name].sign.strip()
    assert sign.most == len(tokens_of(processor, sign, (300, 117), 1, 2)) == tokens
    lines = [
        tuple(tokenizer.decode([*each], skip_special_tokens=False) for each in (join[:2], join[2:]))
        for join in sign.joins
    ]
    assert lines == ([("\n" * 3, "\n" * 3)] * 2 + [("\n" * 4, "\n" * 4)] if name == "gemma3" else [])


def test_a_digest_is_of_all_that_decides_what_a_picture_becomes(asked: Asked, tmp_path: Path) -> None:
    from app.engines.vllm.expansion import sign_of

    path = written("llava", tmp_path, shallow_model())
    first = sign_of(*asked(path, {"image": 4}), "image")
    assert sign_of(*asked(path, {"image": 2}), "image") == first
    config_file = path / "processor_config.json"
    config_file.write_text(config_file.read_text() + "\n")
    assert sign_of(*asked(path, {"image": 4}), "image").digest != first.digest


@pytest.mark.media
def test_what_is_cut_into_tiles_only_where_pictures_are_few_is_asked_with_their_number(
    asked: Asked, tmp_path: Path
) -> None:
    from app.engines.vllm.expansion import expanded_ids, sign_of, tokens_of

    path = written("deepseek_vl2", tmp_path, shallow_model())
    config, processor = asked(path, {"image": 4})
    sign = sign_of(config, processor, "image")
    assert (sign.counted, sign.numbered) == (True, False)
    shapes = [(448, 900), (300, 300), (900, 448)]
    for of in (1, 2, 3):
        alone = [tokens_of(processor, sign, shape, 0, of) for shape in shapes[:of]]
        together = expanded_ids(processor, "image", [*sign.target] * of, shapes[:of])
        assert [token for one in alone for token in one] == together
    assert len(tokens_of(processor, sign, shapes[0], 0, 3)) < len(tokens_of(processor, sign, shapes[0], 0, 2))


@pytest.mark.media
def test_a_processor_that_takes_no_two_is_told_of(asked: Asked, tmp_path: Path) -> None:
    """GLM-ASR's fails with two sounds, whatever the limit is; and a limit of one is one."""
    from app.engines.vllm.expansion import sign_of

    assert sign_of(*asked(written("glmasr", tmp_path, shallow_model()), {"audio": 2}), "audio").alone
    path = written("llava", tmp_path, shallow_model())
    assert [sign_of(*asked(path, {"image": most}), "image").alone for most in (1, 2)] == [True, False]


@pytest.mark.media
def test_a_picture_that_no_sign_shows_is_put_at_the_prompts_beginning(asked: Asked, tmp_path: Path) -> None:
    from app.engines.vllm.expansion import sign_of, tokens_of

    path = written("blip2", tmp_path, shallow_model())
    config, processor = asked(path, {"image": 1})
    sign = sign_of(config, processor, "image")
    assert (sign.marker, sign.target, sign.first, sign.counted) == ("", (), (), False)
    assert len(tokens_of(processor, sign, (300, 117), 0, 1)) == sign.most == 32


@pytest.mark.media
@pytest.mark.parametrize("name", ["llava", "blip2"])
def test_a_processor_that_changes_more_than_the_pictures_place_is_not_used(
    asked: Asked, tmp_path: Path, name: str
) -> None:
    """Such as PaliGemma's, which ends each prompt with a line feed: an answer that is continued would have it, too."""
    from app.engines.vllm.expansion import sign_of

    config, processor = asked(written(name, tmp_path, shallow_model()), {"image": 1})
    apply = processor.apply

    def ended(*args: Any) -> Any:
        result = apply(*args)
        return {**result, "prompt_token_ids": [*result["prompt_token_ids"], 5]}

    processor.apply = ended
    with pytest.raises(ValueError, match=r"no token of|changes more"):
        sign_of(config, processor, "image")
