"""Further families of models that see, on SGLang: prompts and answers are those of transformers."""

import json
import subprocess
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from app.engines.base import EngineInfo, MediaInput
from app.messages.media import Media
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from ops.models.seeing import written
from tests.contract.conftest import loading
from tests.contract.sight import SIZES, picture, placed, pool_of
from tests.contract.subject import Subject
from tests.shallow import shallow_model
from tests.stack import PYTHON, ROOT

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.media,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
ARGS = {"max_total_tokens": 8192, "enable_multimodal": True}


def seen_by_transformers(folder: Path, text: str) -> list[tuple[list[int], list[int], list[float]]]:
    """Prompt, answer and logprobs for each size, in a process of its own: SGLang changes torch in this one."""
    pictures = [(*size, b64encode(picture(number, *size)).decode()) for number, size in enumerate(SIZES)]
    process = subprocess.run(
        [PYTHON, "-m", "tests.seen_by_transformers"], input=json.dumps([str(folder), text, pictures]),
        capture_output=True, cwd=ROOT, text=True, check=False,
    )  # fmt: skip
    assert not process.returncode, process.stderr
    answers: list[tuple[list[int], list[int], list[float]]] = json.loads(process.stdout)
    return answers


@pytest.mark.parametrize("model", ["mistral3", "pixtral", "glm4v", "qwen2_5_vl"])
async def test_a_family_answers_as_transformers_does(model: str, tmp_path: Path) -> None:
    path = written(model, tmp_path, shallow_model(), weights=True)
    tokenizer = load_tokenizer(path, None, "file")
    with loading("sglang"):
        engine: Any = create_engine(pool_of("sglang", path, args=ARGS))
        (sign,) = (one for one in (await engine.start()).signs if one.kind == "image")
        subject = Subject("sglang", engine, EngineInfo(32, 0, 0, 0), tokenizer, set(), 6.0)
    before, after = (tokenizer.encode(text, add_special_tokens=False) for text in ("Look at ", " What?"))
    marker, at = placed(tokenizer.encode(sign.marker, add_special_tokens=False), sign)
    reference = seen_by_transformers(path, f"Look at {sign.marker} What?")
    for number, (size, (ids, tokens, logprobs)) in enumerate(zip(SIZES, reference, strict=True)):
        becomes, data = await engine.expansion("image", size, 0, 1), picture(number, *size)
        prompt = [*before, *marker[:at], *becomes, *marker[at + len(sign.target) :], *after]
        assert prompt == ids, size
        media = MediaInput(Media("image", f"{number:064x}", size, len(before) + at, len(becomes)), data)
        question = replace(subject.request(prompt, max_tokens=len(tokens), logprobs=1), media=[media])
        ours = [lp async for step in engine.generate(question) for lp in step.logprobs or ()]
        assert [lp.token_id for lp in ours] == tokens, size
        assert [lp.logprob for lp in ours] == pytest.approx(logprobs, abs=2e-3), size
    await engine.close()
