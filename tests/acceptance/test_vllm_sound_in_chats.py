"""Sound in chats on real vLLM, a small Qwen2-Audio with random weights: what it hears, its index and its cache."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI

from app.kv.blocks import prompt_hashes
from app.media.placeholders import sounds_of
from app.media.sound import decode_sound
from app.messages.media import Media
from app.tokenizing.tokenizer import load_tokenizer
from tests.chaos.fleet import Fleet
from tests.serving import client_of
from tests.speech.samples import GARDEN, encoded, tone, wav
from tests.stack import indexed_blocks, wait_until
from tests.vlm import random_vlm

pytestmark = [pytest.mark.timeout(900), pytest.mark.media]

POOL, SIZE = "decode-pool-a", 32
ENV = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    engine = {
        "model": "hears", "engine": "vllm", "path": str(random_vlm("qwen2_audio")), "block_size": SIZE,
        "max_model_len": 2048, "max_running": 8,
        "args": {
            "dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**28,
            "limit_mm_per_prompt": {"audio": 4},
        },
    }  # fmt: skip
    with Fleet(tmp_path_factory.mktemp("hears") / "fleet", {POOL: engine}, apis=1, workers=1, **ENV) as f:
        yield f


@pytest.fixture
def client(fleet: Fleet) -> Iterator[OpenAI]:
    with client_of(fleet.urls()[0]) as c:
        yield c


def asked(*files: bytes) -> list[Any]:
    parts = [
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}
        for data in files
    ]
    return [{"role": "user", "content": [{"type": "text", "text": "Listen."}, *parts]}]


def answer(client: OpenAI, messages: list[Any]) -> Any:
    return client.chat.completions.create(model="hears", messages=messages, max_tokens=12, temperature=0)


def expanded(*files: bytes) -> tuple[list[int], list[Media]]:
    """The prompt as the API has to make it, put together here in another way."""
    path = random_vlm("qwen2_audio")
    tokenizer, sounds = load_tokenizer(path, None, "file"), sounds_of(path)
    assert sounds is not None
    parts = [{"type": "text", "text": "Listen."}, *({"type": "audio"} for _ in files)]
    prompt, media, queue = [], [], [decode_sound(data, most_s=60)[0] for data in files]
    text = tokenizer.render_chat([{"role": "user", "content": parts}])
    for token in tokenizer.encode(text, add_special_tokens=False):
        if token != sounds.token_id:
            prompt.append(token)
            continue
        sound = queue.pop(0)
        tokens = sounds.tokens(sound.length)
        media.append(Media("audio", sound.sha256, (sound.length,), len(prompt), len(tokens)))
        prompt += tokens
    return prompt, media


def test_the_answer_is_that_of_transformers(client: OpenAI) -> None:
    """Real speech and a tone: the engine gets the samples that the API decoded, where the placeholders say."""
    import torch
    from transformers import AutoProcessor, Qwen2AudioForConditionalGeneration

    path = random_vlm("qwen2_audio")
    model = Qwen2AudioForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    extractor = AutoProcessor.from_pretrained(path).feature_extractor
    files = [GARDEN, wav(tone(3))]
    prompt, _ = expanded(*files)
    samples = [np.frombuffer(decode_sound(data, most_s=60)[0].data, "<f4") for data in files]
    features = extractor(
        samples, sampling_rate=16_000, padding="max_length", return_attention_mask=True, return_tensors="pt"
    )
    output = model.generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        input_features=features["input_features"],
        feature_attention_mask=features["attention_mask"],
        max_new_tokens=12,
        do_sample=False,
    )
    theirs = load_tokenizer(path, None, "file").decode(output[0, len(prompt) :].tolist(), skip_special_tokens=True)
    ours = answer(client, asked(*files))
    assert ours.choices[0].message.content == theirs
    assert ours.usage.prompt_tokens == len(prompt)
    assert answer(client, asked(wav(tone(3)), GARDEN)).choices[0].message.content != theirs


def test_a_second_question_meets_the_sounds_kv_and_another_sound_does_not(fleet: Fleet, client: OpenAI) -> None:
    """The index has the hashes that the API computes, also of blocks within a sound."""
    s, files = fleet.stack, [wav(tone(8, 300.0)), encoded(tone(2, 900.0), "flac", "flac")]
    before = indexed_blocks(s, POOL)
    first = answer(client, asked(*files))
    prompt, media = expanded(*files)
    blocks = (len(prompt) - 1) // SIZE
    wait_until(lambda: indexed_blocks(s, POOL) >= before + blocks, "the index has its blocks")
    hashes = prompt_hashes(prompt, SIZE, media=media)
    entries = s.redis.hmget(f"{s.deployment}:cached:{POOL}", [hashes[i : i + 8] for i in range(0, len(hashes), 8)])
    assert (len(entries), all(entries)) == (blocks, True)
    more = [*asked(*files), {"role": "assistant", "content": "I do."}, {"role": "user", "content": "And?"}]
    assert answer(client, more).usage.prompt_tokens_details.cached_tokens >= len(prompt) // SIZE * SIZE - SIZE
    other = answer(client, asked(wav(tone(8, 310.0)), files[1]))
    assert other.usage.prompt_tokens == first.usage.prompt_tokens
    assert other.usage.prompt_tokens_details.cached_tokens < SIZE, "the text before the sound has no whole block"
    logs = "".join(path.read_text() for path in Path(s.directory).rglob("*.log"))
    assert "media_expanded_otherwise" not in logs
