"""The model's public chat template, where the corpus has it."""

from functools import cache
from pathlib import Path

from ops.models.cell import Cell, right, untried, wrong
from ops.models.loaded import Model
from ops.templates.check import outcomes
from ops.templates.packages import HOME, MORE, REQUIREMENTS, templates
from ops.templates.readback import read_back

TEMPLATES = {
    "llama": "meta-llama-Llama-3.3-70B-Instruct",
    "llama4": "llama4",
    "qwen2": "Qwen-Qwen2.5-7B-Instruct",
    "qwen3": "Qwen-Qwen3-0.6B",
    "qwen3_moe": "qwen3_instruct_2507",
    "qwen3_5": "Qwen3.5-4B",
    "qwen3_5_moe": "qwen3_6",
    "gemma2": "google-gemma-2-2b-it",
    "gemma3": "gemma3",
    "gemma3n": "gemma3n",
    "gemma4": "google-gemma-4-31B-it",
    "gpt_oss": "openai-gpt-oss-120b",
    "mistral": "mistral_v1",
    "ministral": "mistral_v3_tekken",
    "ministral3": "mistralai-Ministral-3-14B-Reasoning-2512",
    "mixtral": "mistral_v1",
    "phi4": "phi_4",
    "phimoe": "microsoft-Phi-3.5-mini-instruct",
    "granite": "ibm-granite-granite-3.3-2B-Instruct",
    "granite_hybrid": "ibm-granite-granite-4.0",
    "falcon_h1": "falcon_h1",
    "nemotron_h": "NVIDIA-Nemotron-Nano-v2",
    "nemotron3": "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "lfm2": "LFM2.5-Instruct",
    "lfm2_moe": "LFM2-8B-A1B",
    "cohere2": "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "exaone4": "exaone4",
    "smollm3": "HuggingFaceTB-SmolLM3-3B",
    "seed_oss": "ByteDance-Seed-OSS",
    "glm4": "tool_chat_template_glm4",
    "glm4_moe": "GLM-4.6",
    "glm4_moe_lite": "GLM-4.7-Flash",
    "deepseek_v3": "deepseek-ai-DeepSeek-V3.1",
    "deepseek_v32": "deepseek-ai-DeepSeek-V3.2",
    "deepseek_v4": "deepseek-ai-DeepSeek-V4",
    "minimax_m2": "MiniMax-M2",
    "minimax_text01": "MiniMax-M1",
    "apertus": "Apertus-8B-Instruct",
    "jamba": "jamba",
}  # of each architecture that has one
_NONE = untried("not in the corpus")


async def rendered(model: Model) -> Cell:
    """The cell for all conversations."""
    if (path := _corpus().get(TEMPLATES.get(model.name, ""))) is None:
        return _NONE
    results = list(outcomes([path]))
    bad = [one.conversation for one in results if one.wrong]
    return wrong(f"{len(bad)} of {len(results)}: {', '.join(bad)}") if bad else right(f"{len(results)}")


async def called(model: Model) -> Cell:
    """The calls that it writes, read back."""
    if (path := _corpus().get(TEMPLATES.get(model.name, ""))) is None:
        return _NONE
    result = read_back(path)
    if not result.written:
        return untried("writes no calls")
    return right(result.dialect or "") if result.right else wrong(f"{result.dialect}: {', '.join(result.wrong)}")


@cache
def _corpus() -> dict[str, Path]:
    """Files of the templates, by name. Raises: Unavailable."""
    files = dict[str, Path]()
    for requirements in (MORE, REQUIREMENTS):
        templates(requirements)  # which fetches them, and leaves out those of the same text
        files |= {path.stem: path for path in (HOME / requirements.stem / "unpacked").rglob("*.jinja")}
    return files
