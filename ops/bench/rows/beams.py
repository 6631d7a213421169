"""The share of prompts for which beam search on a real engine finds what transformers' search finds."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from app.tokenizing.tokenizer import load_tokenizer
from ops.bench.engines.pools import model_dir, vllm_pool
from ops.bench.engines.prompts import prompts
from ops.bench.load import System
from ops.bench.parts import Say
from ops.bench.size import Size
from ops.bench.systems import xylem

_BEAMS, _TOKENS, _AT_ONCE = 4, 24, 4


def beams(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Both in float32: all tokens of all answers have to be the same, in their order. Raises: Unavailable."""
    size.needs("real vLLM and transformers", "vllm", "transformers")
    path, count = model_dir(), size.of(50, 10, 2)
    tokenizer = load_tokenizer(path)
    token_ids = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts(count)]
    say(f"beams: {count} prompts by transformers")
    theirs = _transformers(path, token_ids)
    with xylem(directory, vllm_pool(path), 1) as system, ThreadPoolExecutor(_AT_ONCE) as threads:
        say(f"beams: {count} prompts by vLLM's steps")
        ours = list(threads.map(lambda prompt: _answers(system, prompt), token_ids))
    different_prompts = [i for i, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other]
    (directory / "beams.json").write_text(json.dumps({"ours": ours, "theirs": theirs, "different": different_prompts}))
    return {"beams_equal": 1 - len(different_prompts) / count}


def _answers(system: System, prompt: list[int]) -> list[list[int]]:
    body = {
        "model": system.model, "prompt": prompt, "n": _BEAMS, "max_tokens": _TOKENS, "use_beam_search": True,
        "return_token_ids": True,
    }  # fmt: skip
    answer = httpx.post(f"{system.url}/v1/completions", json=body, timeout=600)
    answer.raise_for_status()
    return [choice["token_ids"] for choice in answer.json()["choices"]]


def _transformers(path: Path, token_ids: list[list[int]]) -> list[list[list[int]]]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    end = model.generation_config.eos_token_id
    answers = []
    for prompt in token_ids:
        rows = model.generate(
            torch.tensor([prompt]), num_beams=_BEAMS, num_return_sequences=_BEAMS, max_new_tokens=_TOKENS,
            do_sample=False,
        )  # fmt: skip
        tails = [row[len(prompt) :] for row in rows.tolist()]
        answers.append([tail[: tail.index(end) + 1] if end in tail else tail for tail in tails])
    return answers
