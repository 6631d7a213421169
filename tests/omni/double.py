"""A package `vllm_omni` made from its contract: its names and no others, and stages that paint and write at once.

What they make follows from what they are asked, so that a field that does not arrive is noticed.
"""

import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from PIL import Image

CONTRACT = Path(__file__).parent.parent / "contract/apis/vllm_omni-0.30.0.json"
STAGES = "stages.json"  # in the model's folder: [model_stage, "llm" or "diffusion", final output or None] of each
FAILS, SLOW = "it fails", "it is slow"  # prompts
_OURS = ("app.engines.omni", "app.painters.omni")
_TYPES = ("OmniEngineArgs", "OrchestratorArgs", "OmniDiffusionConfig", "OmniDiffusionSamplingParams")


class Package:
    """The modules, and what of them was used: names of parameters and fields, by class."""

    def __init__(self, without: tuple[str, str] | None = None) -> None:
        """`without`: a class and a name of it that is called something else."""
        self.contract = json.loads(CONTRACT.read_text())
        self.uses: set[tuple[str, str]] = set()
        self.without, self.aborted, self.shut_down = without, list[str](), 0
        self.devices = 1
        self.modules: dict[str, ModuleType] = {}
        for name in _TYPES:
            self._put(self.contract["classes"][name]["module"], name, self._strict(name))
        self._put("vllm_omni.outputs", "OmniRequestOutput", self._output())
        self._put("vllm_omni.config.resolver", "resolve_omni_config", self._resolve)
        self._put("vllm_omni.platforms", "current_omni_platform", _Platform(self))
        self._put("vllm_omni", "AsyncOmni", lambda **given: _AsyncOmni(self, given))

    def use(self, owner: str, *names: str) -> None:
        """Counts them. Raises: TypeError for one that the contract hasn't."""
        for name in names:
            if name not in self.names(owner):
                raise TypeError(f"{owner} has no {name}")
            self.uses.add((owner, name))

    def names(self, owner: str) -> set[str]:
        classes, functions = self.contract["classes"], self.contract["functions"]
        if owner in functions:
            names = {one["name"] for one in functions[owner]["params"]}
        elif "." in owner:
            name, _, method = owner.partition(".")
            names = {one["name"] for one in classes[name]["methods"][method]["params"]}
        else:
            names = {*classes[owner]["fields"], *classes[owner]["methods"], *classes[owner].get("sets", ())}
            if "EngineArgs" in classes[owner]["bases"]:  # vLLM's own
                from vllm.engine.arg_utils import EngineArgs

                names |= {field.name for field in dataclasses.fields(EngineArgs)}
        return names - ({self.without[1]} if self.without and self.without[0] == owner else set())

    def _put(self, module: str, name: str, value: Any) -> None:
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            self.modules.setdefault(path, ModuleType(path)).__path__ = []
        setattr(self.modules[module], name, value)

    def _strict(self, name: str) -> Any:
        class_ = dataclasses.make_dataclass(name, [(field, Any, None) for field in self.names(name)])

        def init(it: Any, **given: Any) -> None:
            self.use(name, *given)
            vars(it).update(given)

        class_.__init__ = init  # type: ignore[method-assign]
        return class_

    def _output(self) -> Any:
        package = self

        class OmniRequestOutput:
            def __init__(self, **values: Any) -> None:
                package.use("OmniRequestOutput", *values)
                vars(self)["_values"] = values

            def __getattr__(self, name: str) -> Any:
                package.use("OmniRequestOutput", name)
                return vars(self)["_values"].get(name)

        return OmniRequestOutput

    def _resolve(self, model: str, **given: Any) -> Any:
        self.use("resolve_omni_config", *given)
        if given["deploy_config_path"] == "missing.yaml":
            raise FileNotFoundError("Deploy config not found: missing.yaml")
        stages = json.loads((Path(model) / STAGES).read_text())
        self.use("OmniConfigResolution", "stage_configs")
        return SimpleNamespace(stage_configs=tuple(_Stage(self, *row) for row in enumerate(stages)))


class _Platform:
    def __init__(self, package: Package) -> None:
        self._package = package

    def get_device_count(self) -> int:
        self._package.use("OmniPlatform", "get_device_count")
        return self._package.devices


class _Stage:
    def __init__(self, package: Package, number: int, row: list[str | None]) -> None:
        name, kind, makes = row
        pipeline = _Told(package, "StagePipelineConfig", model_stage=name)
        self._values = _Told(
            package, "BaseVllmOmniStageConfig",
            stage_id=number, final_output=makes is not None, final_output_type=makes,
            stage_type=SimpleNamespace(value=kind), stage_pipeline_config=pipeline,
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return getattr(self._values, name)


class _Told:
    def __init__(self, package: Package, owner: str, **values: Any) -> None:
        self._package, self._owner, self._known = package, owner, values

    def __getattr__(self, name: str) -> Any:
        self._package.use(self._owner, name)
        return self._known[name]


class _AsyncOmni:
    def __init__(self, package: Package, given: Mapping[str, Any]) -> None:
        self._package, self._model, self._makes = package, given["model"], given["output_modalities"]
        if given.get("enforce_eager") == "no":
            raise ValueError("enforce_eager must be a bool")
        if given.get("worker_backend") == "broken":
            raise RuntimeError("No stage came up")
        self._stages = json.loads((Path(self._model) / STAGES).read_text())

    @property
    def default_sampling_params_list(self) -> list[Any]:
        self._package.use("OmniBase", "default_sampling_params_list")
        return [f"defaults of {name}" for name, _, _ in self._stages]

    @property
    def vllm_config(self) -> Any:
        self._package.use("AsyncOmniBase", "vllm_config")
        return SimpleNamespace(
            cache_config=SimpleNamespace(block_size=32, num_gpu_blocks=100),
            scheduler_config=SimpleNamespace(max_num_seqs=4), model_config=self.model_config,
            parallel_config=SimpleNamespace(data_parallel_size=1), kv_transfer_config=None,
        )  # fmt: skip

    @property
    def model_config(self) -> Any:
        self._package.use("AsyncOmniBase", "model_config")
        return SimpleNamespace(max_model_len=256)

    async def generate(
        self, prompt: Any, sampling_params: Any = None, request_id: str = "", **given: Any
    ) -> AsyncIterator[Any]:
        self._package.use("AsyncOmni.generate", "prompt", "request_id", *given)
        assert (sampling_params is None) == ("sampling_params_list" in given)
        if sampling_params is not None:
            self._package.use("AsyncOmni.generate", "sampling_params")
            async for output in self._written(prompt, sampling_params, request_id):
                yield output
            return
        yield await self._painted(prompt, request_id, given)

    async def _painted(self, prompt: Any, request_id: str, given: Mapping[str, Any]) -> Any:
        import asyncio

        assert given["output_modalities"] == self._makes
        params = given["sampling_params_list"]
        kinds = [kind for _, kind, _ in self._stages]
        assert [isinstance(one, str) for one in params] == [kind == "llm" for kind in kinds]
        wishes = vars(next(one for one in params if not isinstance(one, str)))
        try:
            await asyncio.sleep(60 if prompt["prompt"] == SLOW else 0)
        except asyncio.CancelledError:
            self._package.aborted.append(request_id)
            raise
        make = sys.modules["vllm_omni.outputs"].OmniRequestOutput  # type: ignore[attr-defined]
        if prompt["prompt"] == FAILS:
            return make(error=f"it said {prompt['prompt']}")
        seed = sha256(repr((sorted(prompt.items()), sorted(wishes.items()))).encode()).digest()
        size = wishes["width"] // 8 * 8, wishes["height"]
        frames = [Image.new("RGB", size, tuple(seed[:3])) for _ in range(wishes.get("num_frames") or 1)]
        return make(images=frames, error=None)

    async def _written(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[Any]:
        from vllm.outputs import CompletionOutput, RequestOutput

        tokens = prompt["prompt_token_ids"]
        for number in range(params.max_tokens):
            last = number == params.max_tokens - 1
            token = (sum(tokens) + len(tokens) + number) % 1000
            choice = CompletionOutput(0, f"<{token}>", [token], None, None, finish_reason="length" if last else None)
            yield RequestOutput(request_id, None, tokens, None, [choice], finished=last, num_cached_tokens=32)

    async def abort(self, request_id: Any) -> None:
        self._package.use("AsyncOmni", "abort")
        self._package.aborted.append(request_id)

    def shutdown(self) -> None:
        self._package.use("AsyncOmniBase", "shutdown")
        self._package.shut_down += 1


@contextmanager
def installed(without: tuple[str, str] | None = None) -> Iterator[Package]:
    """The package in this process, while the block runs; the adapters are imported anew."""
    package = Package(without)
    prefixes = ("vllm_omni", *_OURS)
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith(prefixes)}
    sys.modules.update(package.modules)
    try:
        yield package
    finally:
        for name in [one for one in sys.modules if one.startswith(prefixes)]:
            del sys.modules[name]
        sys.modules.update(before)


def model(folder: Path, *stages: tuple[str, str, str | None]) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / STAGES).write_text(json.dumps(stages))
    return folder
