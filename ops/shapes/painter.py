"""`python -m ops.shapes.painter`: trains the model that paints: `painter.safetensors`, under 6 MB.

First the autoencoder learns to make latents of pictures, then the U-Net and the text encoder to make latents of
prompts. On one core of a CPU this takes about half an hour.
"""

import copy
import json
import math
import random
import time
from typing import Any

import numpy as np

from app.demo_models.shapes.painting import EDGE, PROMPT_TOKENS, WEIGHTS, new_parts, schedule, tokenizer
from ops.shapes.pictures import COLOURS, SHAPES, Scene, draw_picture, draw_thing

_SEED = 1
_VAE_STEPS, _VAE_BATCH, _VAE_RATE = 900, 8, 2e-3
_STEPS, _BATCH, _RATE = 3000, 32, 1.2e-3
_PICTURES = 4000
_UNPROMPTED = 0.1  # of the pictures, so that guidance has something to lead away from
_PROMPTS = ("{}", "a picture of {}", "draw {}", "paint {}", "{} on a white background")


def main() -> None:
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    torch.manual_seed(_SEED)
    rng = random.Random(_SEED)
    vocabulary, merges = _vocabulary(rng)
    words = tokenizer(vocabulary, merges)
    parts = new_parts(len(vocabulary), 1.0)
    text, unet, vae = parts["text_encoder"], parts["unet"], parts["vae"]
    print(
        {name: f"{sum(p.numel() for p in part.parameters()) / 1e6:.2f} M" for name, part in parts.items()}, flush=True
    )
    scenes = [draw_thing(rng, rng.choice(list(COLOURS)), rng.choice(SHAPES)) for _ in range(_PICTURES)]
    pictures = torch.stack([_pixels(rng, scene) for scene in scenes])

    optimizer, start = torch.optim.AdamW(vae.parameters(), lr=_VAE_RATE), time.time()
    for step in range(_VAE_STEPS):
        _set_rate(optimizer, _VAE_RATE, step, _VAE_STEPS)
        batch = pictures[torch.randint(0, _PICTURES, (_VAE_BATCH,))]
        latent = vae.encode(batch).latent_dist
        loss = functional.mse_loss(vae.decode(latent.sample()).sample, batch) + 1e-5 * latent.kl().mean() / EDGE
        _step(optimizer, loss)
        if step % 100 == 99:
            print("autoencoder", step + 1, f"{loss.item():.4f} {time.time() - start:.0f} s", flush=True)
    with torch.no_grad():
        latents = torch.cat([vae.encode(batch).latent_dist.mean for batch in pictures.split(50)])
    scaling_factor = float(1 / latents.std())
    latents *= scaling_factor

    from diffusers import DDIMScheduler

    noise_schedule = DDIMScheduler(**schedule())
    mean_parts = copy.deepcopy({"text_encoder": text, "unet": unet})  # the mean of the last weights
    parameters = [*unet.parameters(), *text.parameters()]
    mean = [*mean_parts["unet"].parameters(), *mean_parts["text_encoder"].parameters()]
    optimizer, start, average = torch.optim.AdamW(parameters, lr=_RATE, weight_decay=1e-4), time.time(), math.nan
    for step in range(_STEPS):
        _set_rate(optimizer, _RATE, step, _STEPS)
        indices = torch.randint(0, _PICTURES, (_BATCH,))
        prompts = ["" if rng.random() < _UNPROMPTED else _prompt(rng, scenes[int(i)]) for i in indices]
        ids = words(prompts, padding="max_length", truncation=True, max_length=PROMPT_TOKENS, return_tensors="pt")
        clean, noise, when = (
            latents[indices],
            torch.randn(_BATCH, *latents.shape[1:]),
            torch.randint(0, 1000, (_BATCH,)),
        )
        prediction = unet(
            noise_schedule.add_noise(clean, noise, when), when, text(ids.input_ids).last_hidden_state
        ).sample
        loss = functional.mse_loss(prediction, noise_schedule.get_velocity(clean, noise, when))
        _step(optimizer, loss, parameters)
        with torch.no_grad():
            for mean_part, part in zip(mean, parameters, strict=True):
                mean_part.lerp_(part, max(0.002, 1 / (step + 1)))
        average = loss.item() if math.isnan(average) else 0.98 * average + 0.02 * loss.item()
        if step % 100 == 99:
            print("painter", step + 1, f"{average:.4f} {time.time() - start:.0f} s", flush=True)
        if step % 500 == 499 or step + 1 == _STEPS:
            _save({**mean_parts, "vae": vae}, vocabulary, merges, scaling_factor)


def _prompt(rng: random.Random, scene: Scene) -> str:
    thing = scene.things[0]
    name = rng.choice([thing.name, thing.name, f"{thing.colour} {thing.shape}"])
    place = rng.choice(["", "", f" {thing.place}"])
    return rng.choice(_PROMPTS).format(name + place)


def _vocabulary(rng: random.Random) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Every byte, as CLIP's vocabulary has it, and the words of the prompts: a token each."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    lines = sorted({_prompt(rng, draw_thing(rng, c, s)) for c in COLOURS for s in SHAPES for _ in range(60)})
    learner = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    learner.train_from_iterator(lines, trainers.BpeTrainer(end_of_word_suffix="</w>", show_progress=False))
    merges = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    tokens = [*alphabet, *(f"{letter}</w>" for letter in alphabet), *("".join(pair) for pair in merges)]
    tokens = [*dict.fromkeys(tokens), "<|startoftext|>", "<|endoftext|>"]
    return {token: i for i, token in enumerate(tokens)}, merges


def _set_rate(optimizer: Any, rate: float, step: int, steps: int) -> None:
    """A short warm-up, then a cosine."""
    for group in optimizer.param_groups:
        group["lr"] = rate * min(1.0, (step + 1) / 100) * (0.01 + 0.495 * (1 + math.cos(math.pi * step / steps)))


def _step(optimizer: Any, loss: Any, clipped: list[Any] | None = None) -> None:
    import torch

    optimizer.zero_grad()
    loss.backward()
    if clipped:
        torch.nn.utils.clip_grad_norm_(clipped, 1.0)
    optimizer.step()


def _pixels(rng: random.Random, scene: Scene) -> Any:
    """float32 of shape (3, EDGE, EDGE), from -1 to 1."""
    import torch

    picture = draw_picture(rng, scene, EDGE)
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 127.5 - 1


def _save(
    parts: dict[str, Any], vocabulary: dict[str, int], merges: list[tuple[str, str]], scaling_factor: float
) -> None:
    from safetensors.torch import save_file

    weights = {
        f"{name}.{key}": tensor.half().contiguous() if tensor.is_floating_point() else tensor
        for name, part in parts.items()
        for key, tensor in part.state_dict().items()
    }
    notes = {"vocabulary": json.dumps(vocabulary), "merges": json.dumps(merges), "scaling_factor": str(scaling_factor)}
    save_file(weights, WEIGHTS, metadata={"format": "pt"} | notes)
    WEIGHTS.chmod(0o644)


if __name__ == "__main__":
    main()
