"""Packages that vLLM's processors import are installed; one that isn't is named when the engine starts."""

import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from PIL import Image

from app.errors import SettingsError
from tests.stack import ROOT
from tests.vlm import random_vlm

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

# The image processors of the families that people start, with the model that brings each.
PROCESSORS = {
    "CLIPImageProcessor": "LLaVA",
    "Gemma3ImageProcessor": "Gemma 3",
    "Gemma4ImageProcessor": "Gemma 4",
    "Glm46VImageProcessor": "GLM-4.6V",
    "GotOcr2ImageProcessor": "InternVL",
    "Idefics3ImageProcessor": "Idefics3",
    "Lfm2VlImageProcessor": "LFM2-VL",
    "Llama4ImageProcessor": "Llama 4",
    "PixtralImageProcessor": "Pixtral and Mistral 3",
    "Qwen2VLImageProcessor": "Qwen2-VL to Qwen3.6",
    "SiglipImageProcessor": "PaliGemma and Gemma 3n",
    "SmolVLMImageProcessor": "SmolVLM",
}
HIDDEN = "import sys; sys.modules['torchvision'] = None"
STARTS = """
import asyncio, sys
from pathlib import Path
from app.runner.engine_factory import create_engine
from app.errors import SettingsError
from app.pools.schema import Pool
engine = create_engine(Pool(model="sees", engine="vllm", path=Path(sys.argv[1]), args={"load_format": "dummy"}))
try:
    asyncio.run(engine.start())
except SettingsError as exc:
    print("REFUSED:", exc.message)
"""


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_image_processor_of_a_family_runs(name: str) -> None:
    """Torchvision runs it. Transformers falls back to another class without it, or can't import the model's module."""
    import transformers

    processor = getattr(transformers, name)()
    inputs = processor(Image.new("RGB", (417, 300), (200, 10, 30)), return_tensors="pt")
    assert inputs["pixel_values"].isfinite().all()
    assert not type(processor).__name__.endswith("Pil")


def test_a_package_that_the_models_module_needs_is_named_at_the_start(tmp_path: Path) -> None:
    """The words of vLLM, where torchvision isn't installed, were that the class "failed to be inspected"."""
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    model = random_vlm("qwen2_vl", weights=False)
    ran = subprocess.run(
        [sys.executable, "-c", STARTS, str(model)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}:{ROOT}", "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert "REFUSED: This model needs a Python package that is not installed: torchvision" in ran.stdout, ran.stderr


def test_a_package_that_a_processor_imports_when_it_is_used_is_named_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """VLLM logs "Multi-modal warmup failed" and nothing else: the first picture would be refused."""
    import transformers

    from app.engines.vllm.args import vllm_config
    from app.engines.vllm.packages import check_processor

    def imports(*_args: object, **_kwargs: object) -> NoReturn:
        raise ModuleNotFoundError("No module named 'soxr'", name="soxr")

    fields = {"model": str(random_vlm("idefics3", weights=False)), "dtype": "float32", "enforce_eager": True}
    config = vllm_config(fields).model_config
    check_processor(config)
    monkeypatch.setattr(transformers.Idefics3Processor, "__call__", imports)
    with pytest.raises(SettingsError, match="not installed: soxr"):
        check_processor(config)
