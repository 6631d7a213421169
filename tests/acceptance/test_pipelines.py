"""Pipelines: several models behind one name. Real processes, the official client, and mock engines with scripts."""

import http.client
import json
import os
import signal
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from app.messages.job import Painting
from app.painters.mock import picture
from tests.acceptance.test_document import declared
from tests.acceptance.test_security import create
from tests.batching import answered, lines_of
from tests.serving import client_of, revive, served_by, serving
from tests.speech.samples import GARDEN, encoded, quiet, tone, wav
from tests.speech.whisper_like import whisper_like
from tests.stack import Stack, all_free, leases, metric, mock_pool, wait_until

WRITERS, PAINTERS, EARS, ANSWERERS = "writers", "painters", "ears", "answerers"
IMAGES, CHATS = "/v1/images/generations", "/v1/chat/completions"
SCENE, HEARD, ANSWER = "a red cat on a mat", "what is the capital of France", "It is Paris."
SLOW = " ".join(["slowly"] * 60)
SCRIPT = {
    "Describe: a cat": SCENE,
    "Describe: slow": SLOW,
    "Describe: nothing": " ",
    "Describe: endless": "slowly " * 2000,
    "Rephrase": "Where is Paris?",
}
ANSWERS = {"Said: what is the capital": ANSWER, "Where is Paris?": "In France."}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
RULES = {"size": "64x64", "steps": 4, "max_steps": 2000}
DESCRIBE: dict[str, Any] = {"model": "writer", "template": "Describe: {input}"}
PIPELINES: dict[str, list[dict[str, Any]]] = {
    "illustrate": [DESCRIBE, {"model": "painter", "template": "{input}, in oil"}],
    "quiet": [DESCRIBE | {"show": False}, {"model": "painter"}],
    "unpainted": [DESCRIBE, {"model": "absent-painter"}],
    "narrate": [{"model": "ears"}, {"model": "answerer", "template": "Said: {input}", "instructions": "Be brief."}],
    "rephrase": [{"model": "writer", "template": "Rephrase {input}"}, {"model": "answerer"}],
    "unanswered": [{"model": "writer", "template": "Rephrase {input}"}, {"model": "absent"}],
    "think": [DESCRIBE, {"model": "answerer"}],
}
DECLARED = {"pipelines": {name: {"stages": stages} for name, stages in PIPELINES.items()}}


def pools(path: Path) -> dict[str, dict[str, Any]]:
    ears = {"task": "transcribe", "path": str(whisper_like(path / "ears", multilingual=False))}
    return {
        WRITERS: mock_pool(model="writer", step_ms=20.0, script=SCRIPT),
        PAINTERS: {
            "model": "painter",
            "engine": "mock",
            "task": "image",
            "max_running": 4,
            "args": {"step_ms": 20.0},
            "painting": RULES,
        },
        EARS: mock_pool(model="ears", script={"": HEARD}) | ears,
        ANSWERERS: mock_pool(model="answerer", script=ANSWERS),
        "absent": mock_pool(model="absent"),
        "absent-painters": {"model": "absent-painter", "engine": "mock", "task": "image", "painting": RULES},
    }


served = served_by(
    pools,
    {"batch": "batch", **{f"{pool}-{i}": pool for pool in (WRITERS, PAINTERS) for i in (1, 2)}}
    | {pool: pool for pool in (EARS, ANSWERERS)},
    more=DECLARED,
    XYLEM_PATIENCE_S="1", XYLEM_MEDIA_STORE="{path}/media",
)  # fmt: skip


def painted(prompt: str, seed: int, step: int = 4, **more: Any) -> bytes:
    return picture(Painting(**{"width": 64, "height": 64, "steps": 4} | more, prompt=prompt, seed=seed), step)


def post(s: Stack, path: str, model: str, **body: Any) -> httpx.Response:
    own: dict[str, Any] = {"prompt": "a cat"} if path == IMAGES else {"messages": asked("tell me")}
    return httpx.post(f"{s.url}{path}", json={"model": model} | own | body, timeout=60)


def asked(*parts: Any) -> Any:
    """A conversation."""
    content = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else list(parts)
    return [{"role": "user", "content": content}]


def sound(data: bytes, form: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": b64encode(data).decode(), "format": form}}


def events(answer: httpx.Response) -> list[Any]:
    """The events of the answer, without `[DONE]`."""
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def idle(s: Stack) -> bool:
    return all_free(s, WRITERS, PAINTERS, EARS, ANSWERERS)


def test_a_text_is_written_and_then_painted(client: OpenAI) -> None:
    """The answer has the prompt that was painted, and counts the text's tokens."""
    response = client.images.generate(model="illustrate", prompt="a cat", n=2, extra_body={"seed": 7})
    assert [b64decode(d.b64_json or "") for d in response.data or ()] == [
        painted(f"{SCENE}, in oil", s) for s in (7, 8)
    ]
    assert [d.revised_prompt for d in response.data or ()] == [f"{SCENE}, in oil"] * 2
    assert response.usage is not None
    assert response.usage.input_tokens > 0
    assert response.usage.output_tokens > 0
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_pictures_of_a_pipeline_are_streamed_and_stored_as_others_are(client: OpenAI, served: Stack) -> None:
    image_events = list(
        client.images.generate(
            model="illustrate", prompt="a cat", stream=True, partial_images=1, extra_body={"seed": 3}
        )
    )
    assert [e.type for e in image_events] == ["image_generation.partial_image", "image_generation.completed"]
    assert b64decode(image_events[1].b64_json) == painted(f"{SCENE}, in oil", 3)
    assert {e.revised_prompt for e in image_events} == {f"{SCENE}, in oil"}  # type: ignore[union-attr]
    assert image_events[1].usage.output_tokens > 0  # type: ignore[union-attr]
    url = post(served, IMAGES, "illustrate", response_format="url", seed=5).json()["data"][0]["url"]
    assert httpx.get(url).content == painted(f"{SCENE}, in oil", 5)


def test_what_a_stage_keeps_is_not_shown(served: Stack) -> None:
    (data,) = post(served, IMAGES, "quiet", seed=3).json()["data"]
    assert b64decode(data["b64_json"]) == painted(SCENE, 3)
    assert "revised_prompt" not in data
    assert SCENE not in post(served, IMAGES, "quiet", stream=True).text


def test_speech_is_answered(client: OpenAI) -> None:
    """The sound has any format, beside a text; answers come whole and streamed.

    The text of the sound comes as soon as it is there.
    """
    stage = {"stage": 1, "model": "ears", "output": HEARD}
    for part in (sound(wav(tone(1.0))), sound(encoded(tone(1.0), "libmp3lame", "mp3"), "mp3")):
        answer = client.chat.completions.create(model="narrate", messages=asked(part))
        assert (answer.model, answer.choices[0].message.content, answer.choices[0].finish_reason) == (
            "narrate",
            ANSWER,
            "stop",
        )
        assert answer.model_extra == answer.model_extra | {"stages": [stage]}  # type: ignore[operator]
    chunks = list(
        client.chat.completions.create(
            model="narrate", messages=asked(part), stream=True, stream_options={"include_usage": True}
        )
    )
    first, *others = chunks
    assert (first.model_extra or {})["stage"] == stage
    assert not any("stage" in (c.model_extra or {}) for c in others)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
    assert {c.id for c in chunks} == {first.id}
    assert {c.model for c in chunks} == {"narrate"}
    assert chunks[-1].usage == answer.usage, "all stages count, in both forms"
    assert answer.usage is not None
    alone = client.chat.completions.create(
        model="answerer", messages=[{"role": "system", "content": "Be brief."}, *asked(f"Said: {HEARD}")]
    )
    assert alone.usage is not None
    assert alone.choices[0].message.content == ANSWER
    assert answer.usage.prompt_tokens > alone.usage.prompt_tokens
    assert answer.usage.completion_tokens > alone.usage.completion_tokens


def test_a_text_needs_no_ears_and_silence_has_no_text(client: OpenAI, served: Stack) -> None:
    before = metric(served, EARS, "steps")
    answer = client.chat.completions.create(model="narrate", messages=asked(HEARD))
    assert answer.choices[0].message.content == ANSWER
    assert "stages" not in (answer.model_extra or {})
    silent = client.chat.completions.create(model="narrate", messages=asked(sound(wav(quiet(1.0)))), max_tokens=3)
    assert (silent.model_extra or {})["stages"][0]["output"] == ""
    assert metric(served, EARS, "steps") == before


def test_parameters_are_those_of_the_last_stage(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="rephrase", messages=asked("Paris where?"), max_tokens=1, n=2, logprobs=True
    )
    assert [c.finish_reason for c in answer.choices] == ["length"] * 2
    assert [len((c.logprobs and c.logprobs.content) or ()) for c in answer.choices] == [1, 1]
    assert (answer.model_extra or {})["stages"] == [{"stage": 1, "model": "writer", "output": "Where is Paris?"}]


@pytest.mark.parametrize(
    ("path", "model", "body", "status", "says", "param"),
    [
        (IMAGES, "illustrate", {"size": "9x9"}, 400, "Stage 2 of 'illustrate', the model 'painter'", "size"),
        (IMAGES, "illustrate", {"prompt": " "}, 400, "There is no text for it", "prompt"),
        (IMAGES, "illustrate", {"prompt": "nothing"}, 500, "Stage 1 of 'illustrate', the model 'writer'", None),
        (IMAGES, "unpainted", {}, 503, "Stage 2 of 'unpainted', the model 'absent-painter'", None),
        (IMAGES, "narrate", {}, 400, "POST /v1/chat/completions serves it", "model"),
        (CHATS, "unanswered", {}, 503, "Stage 2 of 'unanswered', the model 'absent'", None),
        (CHATS, "illustrate", {}, 400, "POST /v1/images/generations serves it", "model"),
        (CHATS, "narrate", {"store": True}, 400, "not kept", "store"),
        (CHATS, "narrate", {"messages": asked(sound(b"no sound"))}, 400, "Stage 1 of 'narrate', the model 'ears'",
         "messages.0.content.0"),
        (CHATS, "narrate", {"messages": asked(PICTURE)}, 400, "the model 'answerer': 'messages.0.content.0': the model",
         "messages.0.content.0"),
        (CHATS, "narrate", {"messages": asked(sound(GARDEN))} | {"tools": 5}, 400, "tools", "tools"),
        (CHATS, "rephrase", {"messages": asked(" ")}, 400, "There is no text for it", "messages"),
        (CHATS, "rephrase", {"messages": [{"role": "system", "content": "x"}]}, 400, "none has the role", "messages"),
        (CHATS, "rephrase", {"max_tokens": 10**6}, 400, "Stage 2 of 'rephrase', the model 'answerer'", "messages"),
        ("/v1/completions", "rephrase", {"prompt": "x", "messages": None}, 400, "is a pipeline", "model"),
        ("/v1/messages", "rephrase", {"max_tokens": 9}, 400, "is a pipeline", None),
        ("/v1/responses", "rephrase", {"input": "x", "messages": None}, 400, "is a pipeline", "model"),
        ("/tokenize", "rephrase", {}, 400, "is a pipeline", "model"),
    ],
)  # fmt: skip
def test_what_a_pipeline_cannot_do_is_refused_by_name(
    served: Stack, path: str, model: str, body: dict[str, Any], status: int, says: str, param: str | None
) -> None:
    answer = post(served, path, model, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error.get("param")) == (status, param), answer.text
    assert says in error["message"]


def test_a_stream_whose_last_stage_fails_ends_with_one_error(served: Stack) -> None:
    """The error comes after what the first stage has made."""
    *pieces, output_event, last = events(post(served, CHATS, "unanswered", stream=True))
    assert output_event["stage"]["output"] == "".join(e["stage"]["delta"] for e in pieces) == "Where is Paris?"
    assert last["error"]["message"].startswith("Stage 2 of 'unanswered', the model 'absent': ")
    assert last["error"]["code"] == "no_worker"
    *pieces, last = events(post(served, CHATS, "rephrase", stream=True, max_tokens=10**6))
    assert all("stage" in event for event in pieces)
    assert last["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_one_deadline_is_that_of_all_stages(served: Stack, stage: int, stream: bool) -> None:
    body: dict[str, Any] = (
        {"prompt": "slow", "timeout": 0.5} if stage == 1 else {"num_inference_steps": 2000, "timeout": 1}
    )
    answer = post(served, IMAGES, "illustrate", stream=stream, **body)
    (error,) = events(answer) if answer.status_code == 200 else [answer.json()]
    assert error["error"]["code"] == "deadline_exceeded"
    assert error["error"]["message"].startswith(f"Stage {stage} of 'illustrate'")
    wait_until(lambda: idle(served), "nothing is left")


@pytest.mark.parametrize(
    ("body", "pool"), [({"prompt": "endless"}, WRITERS), ({"num_inference_steps": 2000}, PAINTERS)]
)
def test_a_client_that_leaves_stops_the_stage_that_is_at_work(served: Stack, body: dict[str, Any], pool: str) -> None:
    """No other stage begins."""
    painted_before = metric(served, PAINTERS, "paint_steps")
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    content = json.dumps({"model": "illustrate", "prompt": "a cat"} | body)
    connection.request("POST", IMAGES, content, {"content-type": "application/json"})
    wait_until(lambda: any(lease.load.running for lease in leases(served, pool)), "its stage is at work")
    connection.close()
    wait_until(lambda: idle(served), "nothing is left")
    steps = metric(served, PAINTERS, "paint_steps") - painted_before
    assert steps < 2000 if pool == PAINTERS else steps == 0


@pytest.mark.parametrize(
    ("body", "pool"), [({"prompt": "slow"}, WRITERS), ({"num_inference_steps": 100}, PAINTERS)]
)  # fmt: skip
def test_a_worker_killed_in_either_stage_changes_nothing(served: Stack, body: dict[str, Any], pool: str) -> None:
    steps = body.get("num_inference_steps", 4)
    expected_prompt = f"{SLOW if pool == WRITERS else SCENE}, in oil"
    with ThreadPoolExecutor(1) as executor:
        request = executor.submit(post, served, IMAGES, "illustrate", seed=11, **body)
        busy = wait_until(lambda: [le for le in leases(served, pool) if le.load.running], "its stage is at work")
        os.kill(busy[0].worker.pid, signal.SIGKILL)
        answer = request.result(60)
    assert answer.status_code == 200, answer.text
    (data,) = answer.json()["data"]
    assert data["revised_prompt"] == expected_prompt
    assert b64decode(data["b64_json"]) == painted(expected_prompt, 11, steps, steps=steps)
    revive(served)


def test_pipelines_are_listed_and_answers_are_as_declared(client: OpenAI, served: Stack) -> None:
    models = {model.id: model.model_extra or {} for model in client.models.list()}
    assert {name: models[name].get("pipeline") for name in PIPELINES} == {
        name: [stage["model"] for stage in stages] for name, stages in PIPELINES.items()
    }
    assert models["narrate"]["capabilities"]["chat"]
    assert [models[name]["capabilities"]["sound"] for name in ("narrate", "rephrase")] == [True, False]
    one = client.models.retrieve("narrate").model_extra or {}
    assert [pool["pool"] for pool in one["pools"]] == [EARS, ANSWERERS]
    anthropics = httpx.get(f"{served.url}/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert not {model["id"] for model in anthropics["data"]} & PIPELINES.keys()
    document = httpx.get(f"{served.url}/openapi.json", timeout=60).json()
    for path, model, body in ((CHATS, "narrate", {"messages": asked(sound(GARDEN))}), (IMAGES, "illustrate", {})):
        assert not list(declared(document, path, "post").iter_errors(post(served, path, model, **body).json()))
        event_schema = declared(document, path, "post", "text/event-stream")
        for event in events(post(served, path, model, stream=True, **body)):
            assert not list(event_schema.iter_errors(event)), event


def test_a_pipelines_name_is_taken(served: Stack) -> None:
    aliases = {"illustrate": {"primary": "writer"}}
    answer = httpx.patch(f"{served.url}/admin/aliases", json={"aliases": aliases})
    assert answer.status_code == 400
    assert "there is a pipeline of that name" in answer.text


def test_a_pipeline_in_a_batch_is_that_lines_error(served: Stack, client: OpenAI) -> None:
    end, _ = answered(client, [{"model": model, "messages": asked("x")} for model in ("answerer", "rephrase")])
    assert end.request_counts.failed == 1, end
    (error,) = lines_of(client, end.error_file_id)
    assert (error["custom_id"], error["response"]["status_code"]) == ("1", 400)
    assert "is a pipeline" in error["response"]["body"]["error"]["message"]


def test_an_api_key_pays_for_one_request_and_all_tokens(valkey_url: str, tmp_path: Path) -> None:
    env = {"XYLEM_DEPLOYMENT": "pipelines-of", "XYLEM_REQUIRE_KEYS": "true"}
    workers = {pool: pool for pool in (WRITERS, ANSWERERS)}
    with serving(valkey_url, tmp_path, pools(tmp_path), workers, more=DECLARED, **env) as s:
        limits = ("--rpm", "2", "--tpm", "300")
        key = create(s, [s.url], "alice", *limits)
        with client_of(s.url, api_key=key) as client:
            create_chat = client.chat.completions.with_raw_response.create
            first = create_chat(model="rephrase", messages=asked("Paris where?"))
            usage = first.parse().usage
            assert usage is not None
            assert int(first.headers["x-ratelimit-remaining-requests"]) == 1
            second = create_chat(model="rephrase", messages=asked("Paris where?"))
            cost = 300 - int(second.headers["x-ratelimit-remaining-tokens"])
            assert usage.total_tokens < cost <= 2 * usage.total_tokens
            with pytest.raises(openai.RateLimitError):
                create_chat(model="rephrase", messages=asked("Paris where?"))
