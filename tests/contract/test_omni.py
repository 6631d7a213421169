"""vLLM-Omni's adapters, on a double made from its contract: the engine itself has no platform for CPUs."""

import ast
import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from app.engines.base import GenerateRequest, MediaInput
from app.errors import EngineFailed, PromptTooLong, RequestError, SettingsError
from app.ids import RunId
from app.messages.job import Painting, PartialOutput, Sampling
from app.messages.media import Media
from app.painters.base import Painted, PaintRequest, PaintStep
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from tests.contract.conftest import model_dir
from tests.omni.double import FAILS, SLOW, Package, installed, model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of importing vLLM

THINKER, TALKER, VOICE = ("thinker", "llm", "text"), ("talker", "llm", None), ("code2wav", "llm", "audio")
PAINTS, FILMS = ("dit", "diffusion", "image"), ("dit", "diffusion", "video")
ADAPTERS = [Path(__file__).parents[2] / "app" / folder for folder in ("engines/omni", "painters/omni")]


@pytest.fixture
def package() -> Iterator[Package]:
    with installed() as installation:
        yield installation


def pool(folder: Path, task: str, *stages: tuple[str, str, str | None], **settings: Any) -> Pool:
    fields = {"model": "m", "engine": "omni", "task": task, "path": model(folder, *stages), "max_model_len": 256}
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():
        tokenizer.symlink_to((model_dir() / "tokenizer.json").resolve())
    return Pool.model_validate(fields | settings)


@asynccontextmanager
async def started(*args: Any, **settings: Any) -> AsyncIterator[Any]:
    engine: Any = create_engine(pool(*args, **settings))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def painting(**more: Any) -> Painting:
    return Painting(**{"prompt": "a cat", "width": 48, "height": 32, "steps": 4, "seed": 1} | more)


async def painted(painter: Any, wanted: Painting, *sources: MediaInput) -> list[PaintStep | Painted]:
    async with aclosing(painter.paint(PaintRequest(RunId("a.0"), wanted, 0, sources))) as steps:
        return [one async for one in steps]


async def file(painter: Any, wanted: Painting) -> bytes:
    last = (await painted(painter, wanted))[-1]
    assert isinstance(last, Painted)
    return last.file


def ask(**more: Any) -> GenerateRequest:
    sampling = Sampling(**{"max_tokens": 4, "temperature": 0.0} | more.pop("sampling", {}))
    return GenerateRequest(**{"id": RunId("a"), "prompt": [5, 6, 7], "sampling": sampling} | more)


async def answer(engine: Any, request: GenerateRequest) -> list[Any]:
    return [step async for step in engine.generate(request)]


async def use_everything(folder: Path) -> None:
    async with started(folder / "paints", "image", TALKER, PAINTS, args={"max-num-seqs": 2}) as painter:
        assert len(await file(painter, painting(negative="a dog", guidance=2.0))) > 60
        with pytest.raises(EngineFailed, match="could not paint it"):
            await painted(painter, painting(prompt=FAILS))
    async with started(folder / "films", "image", FILMS, painting={"videos": True}) as painter:
        assert b"ftyp" in (await file(painter, painting(format="mp4", frames=9, fps=8)))[:16]
    async with started(folder / "writes", "generate", THINKER, TALKER, VOICE) as engine:
        [first, *_rest] = await answer(engine, ask())
        assert (first.tokens, first.cached_tokens) == ([21], 32)


@pytest.mark.usefixtures("package")
async def test_the_same_request_gives_the_same_bytes_and_another_one_others(tmp_path: Path) -> None:
    async with started(tmp_path, "image", PAINTS) as painter:
        requests = [painting(), painting(seed=2), painting(negative="a dog"), painting(guidance=3.0), painting(steps=5)]
        files = [await file(painter, one) for one in requests]
        assert len(set(files)) == len(requests)
        assert await asyncio.gather(*(file(painter, one) for one in requests)) == files
        assert (image := Image.open(io.BytesIO(files[0]))).size == (48, 32)
        assert image.format == "PNG"
        assert painter.stats().paint_steps == 2 * (4 * 4 + 5)


async def test_a_picture_that_nobody_wants_any_more_is_ended_in_the_engine(package: Package, tmp_path: Path) -> None:
    async with started(tmp_path, "image", PAINTS) as painter:
        slow = asyncio.create_task(file(painter, painting(prompt=SLOW)))
        while painter._painting is None:
            await asyncio.sleep(0.01)
        slow.cancel()
        assert await asyncio.wait_for(file(painter, painting()), 10)
    assert package.aborted == ["a.0"]
    assert package.shut_down == 1


@pytest.mark.usefixtures("package")
async def test_what_it_cannot_paint_is_refused_and_its_words_are_not_repeated(tmp_path: Path) -> None:
    picture = MediaInput(Media("image", "x", (2, 2)), bytes(12))
    async with started(tmp_path, "image", PAINTS) as painter:
        with pytest.raises(RequestError, match="edits no pictures"):
            await painted(painter, painting(strength=0.5), picture)
        with pytest.raises(RequestError, match="makes images"):
            await painted(painter, painting(frames=9, fps=8))
        with pytest.raises(RequestError, match="48x32"):
            await painted(painter, painting(width=50))
        with pytest.raises(EngineFailed) as failure:
            await painted(painter, painting(prompt=FAILS))
        assert FAILS not in str(failure.value)


@pytest.mark.usefixtures("package")
async def test_text_comes_step_by_step_and_goes_on_where_another_worker_ended(tmp_path: Path) -> None:
    async with started(tmp_path, "generate", THINKER, TALKER, VOICE) as engine:
        steps = await answer(engine, ask())
        assert [step.tokens for step in steps] == [[21], [22], [23], [24]]
        assert [step.finish for step in steps] == [None, None, None, "length"]
        beginning = [PartialOutput([21], 4)]
        assert [token for step in await answer(engine, ask(begun=beginning)) for token in step.tokens]
        with pytest.raises(PromptTooLong):
            await answer(engine, ask(prompt=[1] * 256))
        with pytest.raises(RequestError, match="one choice"):
            await answer(engine, ask(sampling={"n": 2}))


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("task", "stages", "settings", "message"),
    [
        ("image", [THINKER, TALKER, VOICE], {}, "no stage of this model makes image: stage 2 (code2wav) makes audio, "
         "and no endpoint here answers with that. Its stage 0 (thinker) makes text, which a pool with task: generate "
         "serves"),
        ("generate", [TALKER, VOICE], {}, "stage 1 (code2wav) makes audio, and no endpoint here answers with that. A "
         "deploy_config whose pipeline ends with a stage that makes text (as qwen2_5_omni_thinker_only) is served"),
        ("generate", [PAINTS], {}, "(dit) makes image, which a pool with task: image, painting: {videos: false}"),
        ("image", [FILMS], {}, "which a pool with task: image, painting: {videos: true} serves"),
        ("image", [PAINTS], {"args": {"stages": 2}}, "args.stages=2: vLLM-Omni has no such argument"),
        ("image", [PAINTS], {"args": {"model": "x"}}, "args.model='x': the pool's own settings say this"),
        ("image", [PAINTS], {"args": {"deploy_config": "missing.yaml"}}, "Deploy config not found: missing.yaml"),
        ("generate", [THINKER], {"role": "prefill"}, "role='prefill'"),
        ("generate", [THINKER], {"tiers": {"host_gb": 1}}, "tiers"),
        ("generate", [THINKER], {"data_parallel_size": 2}, "data_parallel_size=2"),
    ],
)  # fmt: skip
def test_stages_that_cannot_be_served_are_refused_before_any_is_loaded(
    task: str, stages: list[Any], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as refusal:
        create_engine(pool(tmp_path, task, *stages, **settings))
    assert message in str(refusal.value)


@pytest.mark.parametrize(("task", "stage"), [("image", PAINTS), ("generate", THINKER)])
def test_a_machine_for_which_it_has_no_platform_is_refused_before_it_loads(
    task: str, stage: tuple[str, str, str], package: Package, tmp_path: Path
) -> None:
    package.devices = 0
    with pytest.raises(SettingsError, match=r"finds no device.*none for CPUs"):
        create_engine(pool(tmp_path, task, stage))


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("args", "error"), [({"enforce_eager": "no"}, SettingsError), ({"worker_backend": "broken"}, EngineFailed)]
)
async def test_a_model_that_does_not_start_says_why(
    args: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    for task, stage in (("image", PAINTS), ("generate", THINKER)):
        with pytest.raises(error, match=r"must be a bool|No stage came up"):
            await create_engine(pool(tmp_path / task, task, stage, args=args)).start()


async def test_a_name_that_changed_is_noticed(tmp_path: Path) -> None:
    """Each name that the adapters pass or read is called something else, and what worked before fails."""
    with installed() as package:
        await use_everything(tmp_path)
    assert len(package.uses) > 30
    unnoticed_uses = [use for use in sorted(package.uses) if not await noticed(use, tmp_path)]
    assert not unnoticed_uses


async def noticed(use: tuple[str, str], folder: Path) -> bool:
    with installed(use):
        try:
            await asyncio.wait_for(use_everything(folder), 20)
        except Exception:  # noqa: BLE001 (however it is noticed)
            return True
    return False


async def test_every_keyword_that_is_passed_was_seen_by_the_double(tmp_path: Path) -> None:
    with installed() as package:
        await use_everything(tmp_path)
    owners = {
        "OmniDiffusionSamplingParams": "OmniDiffusionSamplingParams",
        "resolve_omni_config": "resolve_omni_config",
    }
    keywords = set()
    for adapter in ADAPTERS:
        for source in adapter.glob("*.py"):
            for node in ast.walk(ast.parse(source.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in owners:
                    keywords |= {(node.func.id, keyword.arg) for keyword in node.keywords if keyword.arg}
    assert len(keywords) > 10
    assert keywords <= package.uses
