"""Texts that end each process that begins to handle them: foreign code dies of them, as native code may of others."""

from pathlib import Path

READER = "kills the reader"  # of a batch's input
RENDERER = "kills the renderer"  # of a prompt
_DIES = f"""
import os, signal
import jinja2, orjson

def deadly(work, text):
    def dies(*args, **kwargs):
        if text in repr((args, kwargs)):
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*args, **kwargs)
    return dies

orjson.loads = deadly(orjson.loads, {READER!r})
jinja2.Template.render = deadly(jinja2.Template.render, {RENDERER!r})
"""


def mortal(directory: Path) -> dict[str, str]:
    """The environment of Python processes that die of these texts; the directory has a module for all of them."""
    module = directory / "sitecustomize.py"
    if not module.exists():  # written once more, it would be empty for a process that is just starting
        module.write_text(_DIES)
    return {"PYTHONPATH": str(directory)}
