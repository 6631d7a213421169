"""The double of VisualGen: pictures of one colour, as the mock paints them, in TensorRT-LLM's way."""

import hashlib
from typing import Any

from tests.trtllm.generated import Package


class Visual:
    """The model behind one VisualGen."""

    def __init__(self, package: Package, given: dict[str, Any]) -> None:
        self.package, self.args = package, vars(given["args"])["_values"]
        if self.args["model"] != given["model"]:
            raise ValueError("two models")
        self.closed = False

    def generate(self, inputs: str, params: Any) -> Any:
        """An output that depends on the prompt and the parameters."""
        import torch

        p = vars(params)["_values"]
        if "fails" in inputs:
            return self.package.make("VisualGenOutput", image=None, video=None, error=f"no {inputs}")
        if p["height"] % 16:
            raise ValueError("height: must be a multiple of 16")
        description = "|".join(str(part) for part in (inputs, p["negative_prompt"], p["guidance_scale"], p["seed"]))
        colour = list(hashlib.sha256(f"{description}|{p['num_inference_steps']}".encode()).digest()[:3])
        frames = p["num_frames"] or 0
        if frames and p["frame_rate"] is None:
            raise ValueError("frame_rate: is needed")
        shape = (1, *((frames,) if frames else ()), p["height"], p["width"], 1)
        pixels = torch.tensor(colour, dtype=torch.uint8).repeat(shape)
        image, video = (None, pixels) if frames else (pixels, None)
        return self.package.make("VisualGenOutput", image=image, video=video, error=None)

    def shutdown(self) -> None:
        self.closed = True
