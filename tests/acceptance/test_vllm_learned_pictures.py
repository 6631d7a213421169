"""Pictures of models whose engines alone know what they become, on real vLLM: encoded, prefilled and answered apart."""

import base64
import io
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from PIL import Image

from ops.models.seeing import SEEING, written
from tests.encode_counts import settled, wait_for
from tests.media.samples import video
from tests.serving import begin
from tests.shallow import shallow_model
from tests.stack import Stack, stack

pytestmark = [pytest.mark.timeout(1500), pytest.mark.media]

ENV = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
SIZE = 32


@pytest.fixture(scope="module", params=["gemma3", "qwen3_vl"])
def served(
    request: pytest.FixtureRequest, valkey_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """One model in three workers, each of which does a part; and in one that does all."""
    folder = tmp_path_factory.mktemp("learned")
    model = written(request.param, folder, shallow_model(), weights=True)
    args = {
        "dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**28, "max_num_batched_tokens": 4096,
        "limit_mm_per_prompt": {kind: most or 1 for kind, most in SEEING[request.param].limits.items()},
    }  # fmt: skip

    def pool(name: str, role: str) -> dict[str, Any]:
        own = {"model": name, "engine": "vllm", "path": str(model), "role": role, "block_size": SIZE}
        return own | {"max_model_len": 4096, "max_running": 4, "args": args}

    pools = {
        "eyes-pool": pool("apart", "encode"), "answer-pool": pool("apart", "prefill"),
        "decode-pool": pool("apart", "decode"), "whole-pool": pool("whole", "both"),
    }  # fmt: skip
    env = {"XYLEM_DEPLOYMENT": f"learned-{request.param}", "XYLEM_HEARTBEAT_S": "0.2", "XYLEM_LEASE_TTL_S": "10"}
    with stack(valkey_url, folder, pools, **env) as s:
        begin(s, within_s=600, **ENV)
        yield s


def asked(*numbers: int) -> list[Any]:
    """About pictures of different colours and sizes."""
    urls = []
    for number in numbers:
        image = Image.new("RGB", (200 + 31 * number, 260), (number * 37 % 256, 255 - number * 5, number * 91 % 256))
        image.paste((255 - number * 5, number * 61 % 256, 17), (0, number, 200, number + 90))
        out = io.BytesIO()
        image.save(out, "PNG")
        urls.append("data:image/png;base64," + base64.b64encode(out.getvalue()).decode())
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is this?"}]}]


def answer(client: OpenAI, model: str, messages: list[Any]) -> Any:
    return client.chat.completions.create(
        model=model, messages=messages, temperature=0.0, max_tokens=8, logprobs=True, top_logprobs=5,
        extra_body={"ignore_eos": True},
    )  # fmt: skip


def likely(answered: Any) -> list[float]:
    """Log probabilities of tokens.

    A model with random weights may say the same of all pictures, but not as surely.
    """
    return [top.logprob for token in answered.choices[0].logprobs.content for top in token.top_logprobs]


def test_it_answers_alike_whole_and_in_parts(served: Stack, client: OpenAI) -> None:
    """Both count alike; what the model says is of the picture."""
    before, likelihoods = settled(served), list[list[float]]()
    for number in range(4):
        whole, apart = (answer(client, model, asked(number)) for model in ("whole", "apart"))
        assert likely(apart) == pytest.approx(likely(whole), abs=0.01)
        assert apart.usage.prompt_tokens == whole.usage.prompt_tokens > 30
        likelihoods.append(likely(whole))
    for one, other in pairwise(likelihoods):
        assert one != pytest.approx(other, abs=0.05), "another picture"
    wait_for(served, before, encoded=4, found=0, fetched=4, lost=0, missing=0)


def test_a_video_is_answered_alike_whole_and_in_parts_or_refused(served: Stack, client: OpenAI) -> None:
    """No other worker encodes it."""
    data = base64.b64encode(video(frames=4, fps=1, size=(256, 192))).decode()
    film = {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{data}"}}
    messages = [{"role": "user", "content": [film, *asked(21)[0]["content"]]}]
    if served.deployment == "learned-gemma3":
        with pytest.raises(BadRequestError, match="takes no videos"):
            answer(client, "apart", messages)
        return
    whole, apart = (answer(client, model, messages) for model in ("whole", "apart"))
    assert likely(apart) == pytest.approx(likely(whole), abs=0.01)
    assert (
        apart.usage.prompt_tokens == whole.usage.prompt_tokens > answer(client, "whole", asked(21)).usage.prompt_tokens
    )
    again = answer(client, "whole", messages)
    assert again.usage.prompt_tokens_details.cached_tokens >= whole.usage.prompt_tokens // SIZE * SIZE - SIZE
    assert not any("media_expanded_otherwise" in path.read_text() for path in served.directory.rglob("*.log"))


def test_a_second_question_about_several_pictures_finds_their_kv(client: OpenAI) -> None:
    messages = asked(11, 12)
    first = answer(client, "whole", messages)
    again = answer(client, "whole", [*messages, {"role": "assistant", "content": "A."}, *asked(13)])
    assert again.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens // SIZE * SIZE - 2 * SIZE
    assert likely(answer(client, "apart", messages)) == pytest.approx(likely(first), abs=0.01)
