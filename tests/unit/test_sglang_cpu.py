"""What SGLang gets on a machine without a GPU, in a process of its own: it changes torch."""

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
    """Else the engines of LLaVA and Mistral 3 end at their start."""
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True, timeout=100, env={"PYTHONPATH": str(_PLUGIN)})
