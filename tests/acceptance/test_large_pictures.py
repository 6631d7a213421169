"""Pictures over 1 MB, through real processes: workers collect them from who awaits the request, and Redis has none.

The mock engine's answers depend on each pixel.
"""

import io
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import httpx
import openai
import psutil
import pytest
from openai import OpenAI
from PIL import Image

from tests.batching import answered
from tests.encode_counts import settled, wait_for
from tests.media.samples import video
from tests.pictures import asked, url
from tests.serving import Pools, client_of, outlived, replica_of, revive, served_by, standing_still
from tests.stack import Stack, all_free, leases, mock_pool, stop, timeline, wait_until, worker_process
from tests.vlm import random_vlm

POOL = "sees-pool"
MB = 10**6
APART = {"encode": "eyes-apart", "prefill": "prefill-apart", "decode": "decode-apart"}


def pools(_: Path) -> Pools:
    path = {"path": str(random_vlm("idefics3", weights=False))}
    args: dict[str, Any] = {"max_model_len": 8192, "block_size": 16, "step_ms": 15.0, "encode_tokens_per_s": 250.0}
    split = {"disagg": {"remote_tokens": 64, "remote_wait_s": 60.0}}
    apart = {
        name: mock_pool(model="apart", **args) | path | {"role": role} | (split if role != "encode" else {})
        for role, name in APART.items()
    }
    return {POOL: mock_pool(model="sees", **args) | path, **apart}


WORKERS = {"sees-0": POOL, "sees-1": POOL, **{name: name for name in APART.values()}}
served = served_by(pools, WORKERS, XYLEM_MEDIA_STORE="{path}/media")


def photo(seed: int, width: int = 1500, height: int = 1000) -> bytes:
    """A PNG of some kilobytes, whose pixels are 4.5 MB."""
    out = io.BytesIO()
    image = Image.new("RGB", (width, height), (seed, 99, 255 - seed))
    image.paste((7, seed, 7), (seed, seed, 300, 300))
    image.save(out, "PNG")
    return out.getvalue()


def grain(seed: int) -> bytes:
    """A PNG of 1.4 MB, as its pixels are."""
    out = io.BytesIO()
    Image.frombytes("RGB", (800, 600), Random(seed).randbytes(800 * 600 * 3)).save(out, "PNG")
    return out.getvalue()


def looked(*pictures: bytes) -> list[Any]:
    """The input of a response, or a conversation's items, with these pictures."""
    parts = [{"type": "input_image", "image_url": url(data), "detail": "auto"} for data in pictures]
    return [{"type": "message", "role": "user", "content": [*parts, {"type": "input_text", "text": "What is it?"}]}]


def answer(client: OpenAI, messages: list[Any], **fields: Any) -> Any:
    options: dict[str, Any] = {"model": "sees", "seed": 1, "max_tokens": 12} | fields
    return client.chat.completions.create(messages=messages, **options)


def text(client: OpenAI, messages: list[Any], **fields: Any) -> str:
    return str(answer(client, messages, **fields).choices[0].message.content)


@contextmanager
def longest_command(s: Stack) -> Iterator[list[int]]:
    """Bytes of the longest command that Redis gets meanwhile, in a list of one. MONITOR writes up to 4 for each."""
    longest, end = [0], Event()
    with s.redis.monitor() as monitor:

        def listen() -> None:
            for command in monitor.listen():
                longest[0] = max(longest[0], len(command["command"]))
                if end.is_set():
                    return

        thread = Thread(target=listen)
        thread.start()
        try:
            yield longest
        finally:
            end.set()
            s.redis.ping()
            thread.join(10)
        assert not thread.is_alive()


def free(s: Stack) -> bool:
    """Whether the replica holds no picture any more, nor does Redis."""
    lines = httpx.get(f"{s.url}/metrics", timeout=10).text.splitlines()
    (size,) = (float(line.split()[1]) for line in lines if line.startswith("xylem_media_held_bytes "))
    return size == 0 and not s.redis.keys(f"{s.deployment}:media:*")


def test_neither_pixels_nor_the_bytes_that_came_pass_through_redis(served: Stack, client: OpenAI) -> None:
    """Frames of a video are as pictures are; of a small picture beside them the pixels do."""
    small = photo(1, 100, 100)
    large_messages = [*asked(photo(2), photo(3), small), *_watched(video(frames=20, size=(1280, 720)))]
    with longest_command(served) as longest:
        stream = answer(client, large_messages, stream=True, max_tokens=60)
        next(stream)
        assert not free(served)
        assert len(served.redis.keys(f"{served.deployment}:media:*")) == 3, "the small one, and who holds it"
        stream.close()
        wait_until(lambda: free(served), "all are let go when the client leaves")
    assert 30_000 < longest[0] < 4 * MB / 10
    assert text(client, asked(photo(2))) == text(client, asked(photo(2))) != text(client, asked(photo(3)))
    wait_until(lambda: free(served), "all are let go with the answer")


def _watched(data: bytes) -> list[Any]:
    part = {"type": "video_url", "video_url": {"url": url(data).replace("image/png", "video/mp4")}}
    return [{"role": "user", "content": [{"type": "text", "text": "What happens?"}, part]}]


def test_the_answer_is_the_same_aside_in_a_batch_and_with_encoder_prompt_and_answer_apart(
    served: Stack, client: OpenAI
) -> None:
    """A batch's line is awaited by the batch worker, which holds its pictures."""
    body: dict[str, Any] = {"model": "sees", "seed": 1, "max_tokens": 12, "messages": asked(photo(11), photo(12))}
    reference = client.chat.completions.create(**body).choices[0].message.content
    assert client.chat.completions.create(**body, service_tier="flex").choices[0].message.content == reference
    before = settled(served)
    apart = client.chat.completions.create(**body | {"model": "apart"})
    assert apart.choices[0].message.content == reference
    assert len(timeline(served, apart.id)["workers"]) >= 2
    wait_for(served, before, encoded=2, lost=0, missing=0)
    served.worker("batch", "batch")
    with longest_command(served) as longest:
        (completion,) = answered(client, [body])[1]
    assert completion["choices"][0]["message"]["content"] == reference
    assert longest[0] < MB


def test_a_worker_that_is_killed_with_pixels_in_flight_loses_no_request(served: Stack, client: OpenAI) -> None:
    """The worker has asked for them, and the replica stands still: the next worker gets them."""
    messages, api = asked(photo(21, 4000, 3000)), served.names["api"].pid
    with ThreadPoolExecutor(1) as threads:
        with standing_still(*(lease.worker.pid for lease in leases(served, POOL))):
            waiting = threads.submit(text, client, messages)
            wait_until(lambda: served.redis.keys(f"{served.deployment}:request:*"), "it is placed", every_s=0.01)
            served.names["api"].send_signal(signal.SIGSTOP)
        try:
            port = wait_until(lambda: sample_port(api), "the port is open")
            worker = wait_until(lambda: connected(served, port), "a worker has connected", every_s=0.01)
            worker.kill()
        finally:
            served.names["api"].send_signal(signal.SIGCONT)
        killed_text = waiting.result(60)
    revive(served)
    assert killed_text == text(client, messages)
    wait_until(lambda: free(served), "all are let go")


def sample_port(pid: int) -> int:
    """The port that a process listens on besides the API's; 0: none."""
    ports = [c.laddr.port for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    return max(ports, key=lambda port: port >= 30_000, default=0) if len(ports) > 1 else 0


def connected(s: Stack, port: int) -> psutil.Process | None:
    """The worker that has a connection to that port."""
    for name in ("sees-0", "sees-1"):
        worker = worker_process(s, name)
        if any(c.raddr and c.raddr.port == port for c in worker.net_connections("tcp")):
            return worker
    return None


def test_an_answer_with_a_photo_goes_on_elsewhere_when_its_worker_is_killed(served: Stack, client: OpenAI) -> None:
    fields: dict[str, Any] = {"max_tokens": 120, "extra_body": {"ignore_eos": True}}
    whole = text(client, asked(photo(31)), **fields)
    assert outlived(served, POOL, answer(client, asked(photo(31)), stream=True, **fields))[0] == whole
    revive(served)


@pytest.mark.parametrize("background", [False, True])
def test_a_kept_answer_is_continued_by_a_replica_that_reads_the_photo_anew(
    served: Stack, client: OpenAI, tmp_path: Path, *, background: bool
) -> None:
    """The dead one has taken its pixels along; the request has it still, long ones in the media store."""
    base = replica_of(served, f"dying-{background}")
    fields: Any = {
        "model": "sees",
        "input": looked(photo(41), grain(42)),
        "max_output_tokens": 90,
        "extra_body": {"seed": 1, "ignore_eos": True},
    }
    with standing_still(*(lease.worker.pid for lease in leases(served, POOL)) if background else ()):
        with client_of(base) as first:
            response = first.responses.create(**fields, background=True)
        if not background:
            wait_until(lambda: len(client.responses.retrieve(response.id).output_text) > 20, "its beginning")
        served.names[f"dying-{background}"].send_signal(signal.SIGKILL)
    going = ("queued", "in_progress")
    over = wait_until(lambda: (r := client.responses.retrieve(response.id)).status not in going and r, "its end", 60)
    assert over.output_text == client.responses.create(**fields).output_text
    assert json.loads(over.model_dump_json())["status"] == "incomplete"


def test_pixels_that_are_gone_with_their_replica_end_the_answer_once_and_clearly(served: Stack, client: OpenAI) -> None:
    """Their file was deleted meanwhile: no other replica has them. The workers serve on."""
    base, workers = replica_of(served, "lost"), [lease.worker.pid for lease in leases(served, POOL)]
    file = client.files.create(file=("photo.png", photo(61), "image/png"), purpose="user_data")
    part: Any = {"type": "input_image", "file_id": file.id, "detail": "auto"}
    with standing_still(*workers):
        with client_of(base) as first:
            response = first.responses.create(
                model="sees", input=[{"role": "user", "content": [part]}], background=True
            )
        wait_until(lambda: served.redis.keys(f"{served.deployment}:request:*"), "it is placed", every_s=0.01)
        client.files.delete(file.id)
        stop(served.names["lost"], signal.SIGKILL)
    events = [*client.responses.retrieve(response.id, stream=True)]
    ends = [event for event in events if event.type.removeprefix("response.") in ("completed", "failed", "incomplete")]
    assert [event.type for event in ends] == ["response.failed"]
    assert "did not come to its worker" in str(ends[0].response.error)
    wait_until(lambda: all_free(served, POOL), "no worker has it any more")
    assert text(client, asked(photo(61)))


def kept_files(s: Stack) -> list[str]:
    """The media store's files of kept requests and conversations."""
    return [one.name for one in (s.directory / "media").glob("kept/*/*")]


def test_what_is_kept_with_a_photo_has_it_in_the_media_store(served: Stack, client: OpenAI) -> None:
    """A stored chat, responses, one of which continues the other, and a conversation: another replica reads them."""
    photos, fields = [grain(number) for number in (51, 52)], {"model": "sees", "max_output_tokens": 8}
    urls, earlier_files = [url(data) for data in photos], set(kept_files(served))
    with longest_command(served) as longest, client_of(replica_of(served, "reading")) as other:
        chat = answer(client, asked(photos[0]), store=True)
        wait_until(lambda: held(other, chat.id), "it is stored")
        (message,) = other.chat.completions.messages.list(chat.id)
        assert urls[0] in json.dumps(message.to_dict())
        first = client.responses.create(**fields, input=looked(photos[0]))
        assert other.responses.retrieve(first.id).output_text == first.output_text
        again = other.responses.create(**fields, input=looked(photos[1]), previous_response_id=first.id)
        (item,) = client.responses.input_items.list(again.id, limit=1)
        assert urls[1] in json.dumps(item.to_dict())
        conversation = client.conversations.create(items=looked(photos[0]))
        reply = other.responses.create(**fields, input=looked(photos[1]), conversation=conversation.id)
        before, asking, _ = client.conversations.items.list(conversation.id, order="asc")
        assert urls[0] in json.dumps(before.to_dict())
        assert urls[1] in json.dumps(asking.to_dict())
        client.conversations.items.delete(str(asking.id), conversation_id=conversation.id)
    assert longest[0] < MB
    files = set(kept_files(served)) - earlier_files
    assert len(files) == 1 + 1 + 2 + 2 + 1
    client.chat.completions.delete(chat.id)
    for response in (first, again, reply):
        client.responses.delete(response.id)
    client.conversations.delete(conversation.id)
    assert not files & set(kept_files(served))


def held(client: OpenAI, chat: str) -> bool:
    try:
        return client.chat.completions.retrieve(chat).id == chat
    except openai.NotFoundError:
        return False
