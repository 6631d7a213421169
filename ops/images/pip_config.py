"""`python -m ops.images.pip_config FILE`: what pip is told here of where packages are, for the pip of an image's build.

Writes it to FILE, a pip.conf. Files and folders of this machine that it names have other places there, below /run/pip:
prints a line `PATH:PLACE` for each.
"""

import ast
import subprocess
import sys
from pathlib import Path

# None that say how to install: the Dockerfiles do.
_KEYS = (
    "index-url",
    "extra-index-url",
    "find-links",
    "trusted-host",
    "proxy",
    "cert",
    "client-cert",
    "timeout",
    "default-timeout",
)
_PLACES = "/run/pip"


def merged(listing: str) -> dict[str, list[str]]:
    """Settings from `pip config list`, by key. It lists what counts more, the variables, last."""
    pairs = (line.split("=", 1) for line in listing.splitlines())
    return {key: ast.literal_eval(value).split() for name, value in pairs if (key := name.rpartition(".")[2]) in _KEYS}


def moved(config: dict[str, list[str]]) -> tuple[dict[str, list[str]], dict[Path, str]]:
    """The settings with the paths of a build, and those by ours. An index has the folder above, where its files lie."""
    places: dict[Path, str] = {}

    def inside(key: str, word: str) -> str:
        path = Path(word.removeprefix("file://"))
        if not path.is_absolute() or not path.exists():
            return word
        path = path.parent if key.endswith("index-url") else path
        return word.replace(str(path), places.setdefault(path, f"{_PLACES}/{len(places)}"), 1)

    return {key: [inside(key, word) for word in words] for key, words in config.items()}, places


def main() -> None:
    command = [sys.executable, "-m", "pip", "config", "list"]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    config, places = moved(merged(listing))
    lines = ["[global]", *(f"{key} = {' '.join(words)}" for key, words in config.items())]
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n")
    for path, place in places.items():
        print(f"{path}:{place}")


if __name__ == "__main__":
    main()
