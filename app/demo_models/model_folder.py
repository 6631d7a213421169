"""Makes a model's folder once: whole, or not at all."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

Make = Callable[[Path], None]  # fills a new folder


def prepare(dest: Path, make: Make, proof: str = "config.json") -> None:
    """`proof`: the file whose presence says that `dest` is there, made here unless `make` makes it.

    Of two concurrent calls, the first one's stays.
    """
    if (dest / proof).exists():
        return
    dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dest.parent, prefix=f".{dest.name}-") as scratch:
        new_folder = Path(scratch) / "model"
        new_folder.mkdir()
        make(new_folder)
        (new_folder / proof).touch()
        try:
            new_folder.rename(dest)
        except OSError:
            if not (dest / proof).exists():
                shutil.rmtree(dest)  # incomplete, from an older version
                new_folder.rename(dest)


def prepare_shown(dest: Path, make: Make, proof: str = "config.json") -> None:
    """The same for a person, whom it tells. Exits when a package or a file is missing."""
    console = Console(stderr=True)
    if (dest / proof).exists():
        return
    try:
        with console.status(f"preparing {dest.name} (up to half a minute, once)"):
            prepare(dest, make, proof)
    except (FileNotFoundError, ModuleNotFoundError) as exc:
        console.print(f"[red]xylem:[/] {exc}", soft_wrap=True)
        raise SystemExit(1) from exc
    console.print(f"[green]✓[/] model in {dest}")
