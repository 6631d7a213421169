"""`python -m ops.shapes.eyes [captions|answers] [more]`: trains the eyes, `eyes.safetensors`.

`more` goes on from the weights that are there, with new pictures and at a third of the rate; so does `answers` alone.

The model is Idefics3 with SmolLM2-135M-Instruct exactly as it is: only the vision tower and the connector (1.4 M
parameters) learn. First they learn to write each picture's caption in the language model's own embeddings, a word
per picture token; that needs no language model and is fast. Then they learn answers to questions, through the
frozen language model. On one core of a CPU this takes about 40 minutes.
"""

import math
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from app.demo_models.shapes.seeing import EDGE, PATCH, PICTURE_TOKENS, VISION, WEIGHTS, seeing_model, tokenizer
from ops.shapes.pictures import COLOURS, SHAPES, Question, Scene, ask, draw_picture, draw_scene

BEFORE, AFTER = "<fake_token_around_image><global-img>", "<fake_token_around_image>"  # around a picture's tokens

_SEED = 1
_CAPTION_STEPS, _CAPTION_BATCH, _CAPTION_RATE = 2100, 32, 1.5e-3
_ANSWER_STEPS, _ANSWER_BATCH, _ANSWER_RATE = 850, 4, 8e-4
_SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n",
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
    "",
)


def main() -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import torch
    from safetensors.torch import load_file, save_file

    lessons = [word for word in sys.argv[1:] if word in ("captions", "answers")] or ["captions", "answers"]
    smollm2 = Path(".xylem/models/SmolLM2-135M-Instruct")
    torch.set_num_threads(1)
    goes_on = "more" in sys.argv or "captions" not in lessons
    seed, slowly = (time.time_ns(), 3) if goes_on else (_SEED, 1)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    words = tokenizer(smollm2)
    model = seeing_model(smollm2, words).requires_grad_(False)  # in bfloat16, as SmolLM2's directory is
    tower, connector = model.model.vision_model.float(), model.model.connector.float()
    _begin(tower)
    eyes = [*tower.requires_grad_(True).parameters(), *connector.requires_grad_(True).parameters()]
    print(f"{sum(p.numel() for p in eyes) / 1e6:.2f} M parameters", flush=True)

    def see(pictures: list[Image.Image]) -> tuple[Any, Any]:
        """The tower's output, a vector per patch, and the language model's input, a vector per picture token."""
        patches = tower(pixel_values=torch.stack([_pixels(p) for p in pictures])).last_hidden_state
        return patches, connector(patches)

    def save() -> None:
        weights = {f"model.vision_model.{k}": v for k, v in tower.state_dict().items()}
        weights |= {f"model.connector.{k}": v for k, v in connector.state_dict().items()}
        save_file({k: v.half().contiguous() for k, v in weights.items()}, WEIGHTS, metadata={"format": "pt"})
        WEIGHTS.chmod(0o644)

    captions = _Captions(model, words, rng, see)
    learning = [*eyes, *captions.parameters()]
    if goes_on:
        model.load_state_dict(load_file(WEIGHTS), strict=False)
    if "captions" in lessons:
        _learn("captions", lambda _: captions.loss(), learning, _CAPTION_STEPS, _CAPTION_RATE / slowly, save)
    if "answers" in lessons:
        answers = _Answers(model, words, rng, see)

        def both(left: float) -> tuple[Any, float]:
            """Captions matter less and less: what the language model makes of the pictures is what counts."""
            loss, right = answers.loss()
            return loss + left * captions.loss()[0], right

        _learn("answers", both, learning, _ANSWER_STEPS, _ANSWER_RATE / slowly, save)


def _begin(tower: Any) -> None:
    """A start from which it learns in minutes: patches as cosine transforms of their colours, which show edges and
    corners at once, and places as waves. From a random start the colours drown both."""
    import torch

    side, grid, half = PATCH, EDGE // PATCH, VISION["hidden_size"] // 2
    waves = np.cos(np.pi * (np.arange(side)[None] + 0.5) * np.arange(side)[:, None] / side)  # (frequency, pixel)
    waves /= np.linalg.norm(waves, axis=1, keepdims=True)
    colours = [np.array(c) / np.linalg.norm(c) for c in ([1, 1, 1], [1, -1, 0], [1, 1, -2])]
    frequencies = [(u, v) for u in range(8) for v in range(8) if u + v < 8]
    filters = [
        (1 + u + v) / 8 * np.einsum("c,y,x->cyx", colour, waves[u], waves[v])
        for u, v in frequencies
        for colour in colours
    ]
    rates = 2.0 ** np.linspace(-1, 2, half // 2)
    angles = 2 * np.pi * np.arange(grid)[:, None] / grid * rates  # (place, wave)
    line = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    places = np.concatenate([np.repeat(line, grid, 0), np.tile(line, (grid, 1))], axis=1)  # rows, then columns
    with torch.no_grad():
        tower.embeddings.patch_embedding.weight[: len(filters)] = torch.tensor(np.stack(filters))
        tower.embeddings.position_embedding.weight.copy_(torch.tensor(places) / 2)


def _learn(
    lesson: str,
    loss_of: Callable[[float], tuple[Any, float]],
    parameters: list[Any],
    steps: int,
    rate: float,
    save: Callable[[], None],
) -> None:
    """AdamW with a short warm-up and a cosine schedule. `loss_of` gets the share of steps that is left, and gives the
    loss and the share of words that are right."""
    import torch

    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98))
    start, average = time.time(), math.nan
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 30) * (0.02 + 0.49 * (1 + math.cos(math.pi * step / steps)))
        loss, right = loss_of(1 - step / steps)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        average = loss.item() if math.isnan(average) else 0.95 * average + 0.05 * loss.item()
        if step % 25 == 24:
            print(lesson, step + 1, f"{average:.3f} {right:.2f} {time.time() - start:.0f} s", flush=True)
        if step % 100 == 99 or step + 1 == steps:
            save()


class _Captions:
    """Picture token i shall be the embedding of word i of the caption, and each patch shall know what is on it."""

    def __init__(self, model: Any, words: Any, rng: random.Random, see: Any) -> None:
        import torch

        self._words, self._rng, self._see = words, rng, see
        probe = random.Random(0)
        caption_tokens = sorted({t for _ in range(3000) for t in self._tokens(draw_scene(probe).caption)})
        self._index = {token: i for i, token in enumerate(caption_tokens)}
        self._stop = self._index[self._tokens("")[-1]]
        self._embeddings = model.model.text_model.embed_tokens.weight[torch.tensor(caption_tokens)].float()
        self._scale = self._embeddings.pow(2).sum(-1).mean()
        self._on_patch = torch.nn.Linear(VISION["hidden_size"], 1 + len(COLOURS) * len(SHAPES))  # forgotten later

    def parameters(self) -> list[Any]:
        return list(self._on_patch.parameters())

    def _tokens(self, caption: str) -> list[int]:
        tokens = self._words.encode(f" {caption}", add_special_tokens=False)
        stop = self._words.encode(".", add_special_tokens=False)
        if len(tokens) > PICTURE_TOKENS:
            raise ValueError(f"{len(tokens)} tokens don't fit a picture: {caption}")
        padded_tokens: list[int] = (tokens + stop * PICTURE_TOKENS)[:PICTURE_TOKENS]
        return padded_tokens

    def loss(self) -> tuple[Any, float]:
        import torch

        scenes = [draw_scene(self._rng) for _ in range(_CAPTION_BATCH)]
        target = torch.tensor([[self._index[t] for t in self._tokens(scene.caption)] for scene in scenes])
        patches, vectors = self._see([_varied(self._rng, scene) for scene in scenes])
        patch_kinds = torch.tensor(np.stack([_covered(scene) for scene in scenes]))
        patch_loss = torch.nn.functional.cross_entropy(self._on_patch(patches).flatten(0, 1), patch_kinds.flatten())
        distance = (vectors.unsqueeze(2) - self._embeddings).pow(2).sum(-1) / self._scale
        loss = torch.nn.functional.cross_entropy(-10 * distance.flatten(0, 1), target.flatten())
        near = distance.gather(2, target.unsqueeze(2)).mean()
        words = target != self._stop
        right = (distance.argmin(-1) == target)[words].float().mean().item()
        return loss + 0.3 * near + patch_loss, right


class _Answers:
    """All questions about a picture in one row: they share the picture and don't see each other."""

    def __init__(self, model: Any, words: Any, rng: random.Random, see: Any) -> None:
        import torch

        self._model, self._words, self._rng, self._see = model, words, rng, see
        self._embed = model.model.text_model.embed_tokens
        self._prefixes = []
        for system in _SYSTEM:
            ids = torch.tensor([self._encode(f"{system}<|im_start|>user\n{BEFORE}")])
            with torch.no_grad():
                cache = model.model.text_model(input_ids=ids, use_cache=True).past_key_values
            self._prefixes.append([(layer.keys, layer.values) for layer in cache.layers])

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._words.encode(text, add_special_tokens=False)
        return ids

    def loss(self) -> tuple[Any, float]:
        import torch
        from transformers import DynamicCache

        scenes = [draw_scene(self._rng) for _ in range(_ANSWER_BATCH)]
        _, vectors = self._see([_varied(self._rng, scene) for scene in scenes])
        rows = [self._row(ask(self._rng, scene)) for scene in scenes]
        length = max(len(row.ids) for row in rows)
        ids, labels, branch, place = (
            torch.stack([torch.tensor(part + [fill] * (length - len(part))) for part in parts])
            for parts, fill in (
                ([r.ids for r in rows], 2),
                ([r.labels for r in rows], -100),
                ([r.branch for r in rows], -1),
                ([r.place for r in rows], 0),
            )
        )
        prefix = self._rng.choice(self._prefixes)
        before = prefix[0][0].shape[2]
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(prefix):
            cache.update(keys.expand(len(rows), -1, -1, -1), values.expand(len(rows), -1, -1, -1), layer)
        # A token sees the prefix, the picture (branch 0), and its own question up to itself.
        order = torch.arange(length)
        mine = (branch.unsqueeze(2) == branch.unsqueeze(1)) | (branch.unsqueeze(1) == 0)
        mask = torch.ones(len(rows), 1, length, before + length, dtype=torch.bool)
        mask[:, 0, :, before:] = mine & (order.unsqueeze(1) >= order)
        embeddings = torch.cat([vectors.to(torch.bfloat16), self._embed(ids[:, PICTURE_TOKENS:])], dim=1)
        hidden_states = self._model.model.text_model(
            inputs_embeds=embeddings, attention_mask=mask, position_ids=place + before, past_key_values=cache
        ).last_hidden_state
        answer_mask = labels != -100
        logits = self._model.lm_head(hidden_states[answer_mask]).float()
        right = (logits.argmax(-1) == labels[answer_mask]).float().mean().item()
        return torch.nn.functional.cross_entropy(logits, labels[answer_mask]), right

    def _row(self, questions: list[Question]) -> "_Row":
        ids = [0] * PICTURE_TOKENS + self._encode(AFTER)
        row = _Row(list(ids), [-100] * len(ids), [0] * len(ids), list(range(len(ids))))
        for number, question in enumerate(questions, 1):
            question_ids = self._encode(f"{question.text}<|im_end|>\n<|im_start|>assistant\n")
            answer = self._encode(f"{question.answer}<|im_end|>")
            row.ids += question_ids + answer
            # A token's label is the next one.
            row.labels += [-100] * (len(question_ids) - 1) + answer + [-100]
            row.branch += [number] * (len(question_ids) + len(answer))
            row.place += range(len(ids), len(ids) + len(question_ids) + len(answer))
        return row


class _Row:
    """Values for each token: its id, the id to predict (-100: none), its branch (0: picture), and its position."""

    def __init__(self, ids: list[int], labels: list[int], branch: list[int], place: list[int]) -> None:
        self.ids, self.labels, self.branch, self.place = ids, labels, branch, place


def _covered(scene: Scene) -> Any:
    """The kind of thing under the centre of each patch, row by row; 0: none."""
    kinds = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    centres = (np.arange(EDGE // PATCH) + 0.5) / (EDGE // PATCH)
    patch_kinds = np.zeros((len(centres), len(centres)), dtype=np.int64)
    for thing in scene.things:
        near_x, near_y = abs(centres - thing.x) <= thing.radius, abs(centres - thing.y) <= thing.radius
        patch_kinds[np.ix_(near_y, near_x)] = 1 + kinds.index((thing.colour, thing.shape))
    return patch_kinds.flatten()


def _varied(rng: random.Random, scene: Any) -> Image.Image:
    """A picture as a client's arrives: of any size, and not quite square."""
    picture = draw_picture(rng, scene, rng.choice((112, 112, 160, 224)))
    if rng.random() < 0.3:
        width, height = picture.size
        picture = picture.resize((round(width * rng.uniform(0.8, 1.25)), height), Image.Resampling.BILINEAR)
    return picture.resize((EDGE, EDGE), Image.Resampling.LANCZOS)


def _pixels(picture: Image.Image) -> Any:
    import torch

    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 127.5 - 1


if __name__ == "__main__":
    main()
