"""SGLang's changes on a machine without a GPU, tested in a process of their own, since they change torch."""

import subprocess
import sys
from pathlib import Path

_PLUGIN = Path(__file__).parents[2] / "ops" / "sglang_cpu"
_SCRIPT = """
import torch, xylem_sglang_cpu
xylem_sglang_cpu.unpin()
assert torch.zeros(2, pin_memory=True).tolist() == [0.0, 0.0]
import transformers.models.deberta.modeling_deberta
"""


def test_code_that_torchscript_compiles_makes_tensors() -> None:
    """Engines of LLaVA and Mistral 3 would end at their start otherwise."""
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True, timeout=100, env={"PYTHONPATH": str(_PLUGIN)})
