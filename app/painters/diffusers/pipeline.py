"""One pipeline of diffusers: what it can do, and one call of it for one picture or several."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from diffusers import DiffusionPipeline
from diffusers.utils import logging
from msgspec.structs import replace
from PIL import Image

from app.engines.base import MediaInput
from app.errors import EngineFailed, RequestError
from app.messages.job import Painting
from app.painters.base import PaintRequest
from app.painters.diffusers.abilities import abilities_of
from app.painters.diffusers.args import DiffusersArgs

# Families of which several pictures in one call may be the same as each alone. Others pad prompts or mix pictures.
_TOGETHER = {"StableDiffusionPipeline"}

OnStep = Callable[[int, Any], bool]  # the step's number, and the latents; False: stop


class Stopped(Exception):
    """Nobody wants the pictures any more."""


class Pipeline:
    """All methods block; one call at a time."""

    def __init__(self, path: Path, args: DiffusersArgs) -> None:
        """Loads it. Raises: EngineFailed."""
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = getattr(torch, args.dtype or ("float32" if device == "cpu" else "bfloat16"))
        try:
            # Never the repository's own code, and nothing from elsewhere.
            pipe = DiffusionPipeline.from_pretrained(
                path, dtype=dtype, variant=args.variant, local_files_only=True, trust_remote_code=False
            )
            if args.cpu_offload:
                pipe.enable_model_cpu_offload(device=device)
            else:
                pipe.to(device)
            if args.vae_tiling:
                pipe.vae.enable_tiling()
        except (OSError, ValueError, AttributeError, ImportError, RuntimeError) as exc:
            raise EngineFailed(f"path={path}: diffusers can't load it: {exc}") from exc
        pipe.set_progress_bar_config(disable=True)
        self._pipe, self.name = pipe, type(pipe).__name__
        self._abilities, self._threads = abilities_of(pipe), args.threads
        self._editing: dict[str, Any] = {}  # pipelines made of the same parts, at the first edit
        self.videos = self._abilities.videos

    @property
    def may_batch(self) -> bool:
        """Its safety checker, if it has one, looks at whole batches."""
        return self.name in _TOGETHER and getattr(self._pipe, "safety_checker", None) is None

    def is_same(self, paintings: Sequence[Painting]) -> bool:
        """Whether a step for these together is, bit by bit, that for each: then all steps are, since shapes decide."""
        first = [replace(painting, steps=1) for painting in paintings]
        together = self._call(first, "latent", lambda *_: True)
        return all(
            torch.equal(together[i : i + 1], self._call([p], "latent", lambda *_: True)) for i, p in enumerate(first)
        )

    def check(self, painting: Painting) -> None:
        """Raises: RequestError."""
        self._abilities.check(painting)

    def edit(self, request: PaintRequest, on_step: OnStep) -> Any:
        """The picture's pixels: height × width × 3, from 0 to 255. Raises: Stopped, RequestError."""
        painting, mask = request.painting, request.mask
        if len(request.sources) > 1:
            raise RequestError("'image': this model edits one picture, not several.", param="image")
        source = _image(request.sources[0], painting)
        if mask is None:
            pipe = self._made("Img2Img", "'image': this model edits no pictures.", "image")
            return _pixels(self._call([painting], "np", on_step, pipe, {"image": source})[0])
        where = _image(mask, painting, Image.Resampling.NEAREST).convert("L")
        pipe = self._made("Inpaint", "'mask': this model edits whole pictures only.", "mask")
        result = _pixels(self._call([painting], "np", on_step, pipe, {"image": source, "mask_image": where})[0])
        # The model sees the mask in blocks of pixels, and its VAE changes all of them.
        return np.where(np.asarray(where)[..., None] > 0, result, np.asarray(source))

    def _made(self, what: str, refusal: str, param: str) -> Any:
        """A pipeline of the same family and parts. Raises: RequestError with that text if there is none."""
        if what not in self._editing:
            # By name: diffusers' own way to find it imports all of its pipelines.
            pipeline_class = getattr(diffusers, self.name.removesuffix("Pipeline") + what + "Pipeline", None)
            if pipeline_class is None:
                raise RequestError(refusal, param=param)
            parameters = inspect.signature(pipeline_class.__init__).parameters
            pipe = pipeline_class(**{name: part for name, part in self._pipe.components.items() if name in parameters})
            pipe.set_progress_bar_config(disable=True)
            self._editing[what] = pipe
        return self._editing[what]

    def paint(self, paintings: Sequence[Painting], on_step: OnStep) -> list[Any]:
        """Each one's pixels: height × width × 3, of a video frames × height × width × 3, from 0 to 255.

        All are of one shape: size, steps, guidance, frames. Raises: Stopped.
        """
        if len(paintings) > 1:  # decoded one by one: several at once differ in their last bits
            latents = self._call(paintings, "latent", on_step)
            return [self.preview(painting, latents[i : i + 1]) for i, painting in enumerate(paintings)]
        return [_pixels(output) for output in self._call(paintings, "np", on_step)]

    def _call(
        self, paintings: Sequence[Painting], output: str, on_step: OnStep, pipe: Any = None, more: Any = None
    ) -> Any:
        """`pipe`: another one than for pictures of texts, and its own parameters."""
        first, pipe = paintings[0], pipe or self._pipe
        if self._threads is not None:
            torch.set_num_threads(self._threads)  # here: OpenMP has a number for each thread that computes
        arguments: dict[str, Any] = {
            "prompt": [p.prompt for p in paintings],
            "height": first.height,
            "width": first.width,
            "num_inference_steps": first.steps,
            # On the CPU, so that every device draws the same noise.
            "generator": [torch.Generator("cpu").manual_seed(p.seed) for p in paintings],
            "output_type": output,
            **(more or {}),
        }
        if first.guidance is not None:
            arguments["guidance_scale"] = first.guidance
        if any(p.negative for p in paintings):
            arguments["negative_prompt"] = [p.negative for p in paintings]
        if self.videos:
            arguments["num_frames"] = first.frames
        if first.strength is not None:
            arguments["strength"] = first.strength
        if pipe is not self._pipe:  # some take their size from the picture
            arguments = {name: value for name, value in arguments.items() if name in abilities_of(pipe).takes}

        def at_end(_pipe: Any, step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            if not on_step(step + 1, tensors["latents"]):
                raise Stopped
            return tensors

        try:
            with torch.inference_mode():
                result = pipe(**arguments, callback_on_step_end=at_end, callback_on_step_end_tensor_inputs=["latents"])
        except Stopped:
            pipe.maybe_free_model_hooks()  # else an offloaded part would stay on the device
            raise
        return result.frames if self.videos else result.images

    def preview(self, painting: Painting, latents: Any) -> Any:
        """One picture's pixels as far as it is: height × width × 3; None for videos."""
        pipe = self._pipe
        if self.videos or not hasattr(pipe, "vae"):
            return None
        with torch.inference_mode():
            if hasattr(pipe, "_unpack_latents"):  # Flux's
                latents = pipe._unpack_latents(latents, painting.height, painting.width, pipe.vae_scale_factor)  # noqa: SLF001 (as its own code)
            config = pipe.vae.config
            latents = latents / config.scaling_factor + (getattr(config, "shift_factor", None) or 0.0)
            image = pipe.vae.decode(latents.to(pipe.vae.dtype), return_dict=False)[0]
            (pixels,) = pipe.image_processor.postprocess(image, output_type="np")
        return _pixels(pixels)


def _image(one: MediaInput, painting: Painting, how: Image.Resampling | None = None) -> Image.Image:
    height, width = one.media.shape
    return Image.frombytes("RGB", (width, height), one.data).resize((painting.width, painting.height), how)


def _pixels(result: Any) -> Any:
    return (result * 255).round().astype("uint8")
