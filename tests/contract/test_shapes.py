"""The models that this package makes: what they see and paint, and that engines agree on it. `make media` runs this.

The thresholds are what was measured when the weights were made (ops/decisions/0047-shapes-models.md), less some.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from app.demo_models.shapes import painting, seeing
from ops.bench.media.painted import diffusers_painter, painted
from ops.bench.media.seen import exam, is_right
from tests.stack import ROOT

pytestmark = [pytest.mark.media, pytest.mark.timeout(600)]

SMOLLM2 = ROOT / ".xylem/models/SmolLM2-135M-Instruct"
SEED = 20261123
VLLM = """
import sys, json
from PIL import Image
from vllm import LLM, SamplingParams
llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=2048, block_size=32, max_num_seqs=8,
          kv_cache_memory_bytes=2**28, limit_mm_per_prompt={"image": 2},
          distributed_executor_backend="app.engines.vllm.one_process.OneProcess")
asked = [{"prompt": p} | ({"multi_modal_data": {"image": Image.open(f)}} if f else {}) for p, f in json.load(sys.stdin)]
made = llm.generate(asked, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
print("answers", json.dumps([one.outputs[0].text for one in made]))
"""


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("models") / "shapes"
    seeing.prepare(SMOLLM2, dest)
    return dest


class Seer:
    """transformers."""

    def __init__(self, path: Path) -> None:
        import torch
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
        self.processor = AutoProcessor.from_pretrained(path)

    def prompt(self, question: str, pictures: int = 1) -> str:
        content = [{"type": "image"}] * pictures + [{"type": "text", "text": question}]
        messages = [{"role": "user", "content": content if pictures else question}]
        return str(self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def answer(self, question: str, pictures: list[Image.Image]) -> str:
        inputs = self.processor(text=self.prompt(question, len(pictures)), images=pictures or None, return_tensors="pt")
        output = self.model.generate(**inputs, max_new_tokens=24, do_sample=False)
        return str(self.processor.tokenizer.decode(output[0, inputs.input_ids.shape[1] :], skip_special_tokens=True))


@pytest.fixture(scope="module")
def seer(shapes: Path) -> Seer:
    return Seer(shapes)


def test_it_sees_what_is_drawn_and_vllm_sees_the_same(shapes: Path, seer: Seer, tmp_path: Path) -> None:
    """The score is at least 40 of 50 new pictures (44, when it was made), and vLLM's answers are transformers'."""
    questions = list(exam(SEED, 50))
    answers = [seer.answer(question.text, [picture]) for picture, question in questions]
    right = sum(is_right(answer, question) for answer, (_, question) in zip(answers, questions, strict=True))
    prompts = []
    for number, (picture, question) in enumerate(questions):
        picture.save(tmp_path / f"{number}.png")
        prompts.append((seer.prompt(question.text), str(tmp_path / f"{number}.png")))
    prompts.append((seer.prompt("What is the capital of France?", 0), ""))
    *theirs, france = _vllm(shapes, prompts)
    assert "Paris" in france
    assert [a for a, b in zip(theirs, answers, strict=True) if a.strip() != b.strip()] == []
    assert right >= 40


def test_text_alone_is_answered_as_by_smollm2(seer: Seer) -> None:
    """Its weights, words and template are SmolLM2's own."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    plain, words = (
        AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32),
        AutoTokenizer.from_pretrained(SMOLLM2),
    )
    for question in ("What is the capital of France?", "Name three colours.", "Write a line about the sea."):
        messages = [{"role": "user", "content": question}]
        prompt = words.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert seer.prompt(question, 0) == prompt
        inputs = words(prompt, return_tensors="pt", add_special_tokens=False)
        output = plain.generate(**inputs, max_new_tokens=24, do_sample=False)
        assert seer.answer(question, []) == words.decode(
            output[0, inputs.input_ids.shape[1] :], skip_special_tokens=True
        )


def test_a_picture_in_tiles_has_a_thousand_tokens(tmp_path: Path) -> None:
    """Such prompts are long enough to measure what a second question about a picture costs."""
    seeing.prepare(SMOLLM2, tmp_path / "tiles", tiles=8)
    seer = Seer(tmp_path / "tiles")
    picture, question = next(exam(SEED, 1))
    inputs = seer.processor(text=seer.prompt(question.text), images=[picture], return_tensors="pt")
    assert (inputs.input_ids == seer.model.config.image_token_id).sum() == 16 * (8 * 8 + 1)


def test_it_paints_what_it_is_asked_for(tmp_path: Path) -> None:
    """The right shape in the right colour, by the pixels alone; and the same seed gives the same picture."""
    painting.prepare(tmp_path / "painter")
    paint = diffusers_painter(tmp_path / "painter")
    assert paint("a red circle", 1).tobytes() == paint("a red circle", 1).tobytes()
    scores = painted(paint, SEED)
    assert scores["painted_colours"] >= 45
    assert scores["painted"] >= 40


def _vllm(model: Path, asked: list[tuple[str, str]]) -> list[str]:
    """The answers of vLLM in a process of its own, which takes its memory with it."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TORCH_COMPILE_DISABLE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", VLLM, str(model)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=env | {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("answers "))
    return [str(answer) for answer in json.loads(line.removeprefix("answers "))]
