"""Sources of models, as the pools file names them. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, WithJsonSchema

_HUB = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?", re.ASCII)
_BUCKET = re.compile(r"(?P<name>[a-z0-9.-]+(/[\w.-]+)+)/?", re.ASCII)
_WRONG = {
    "hf": "has to be hf://organisation/name or hf://organisation/name@revision",
    "s3": "has to be s3://bucket/folder",
}

Part = Literal["text", "all"]
# What makes prompts and reads answers: tokenizer, template, configuration. An API replica needs no more.
_TEXT = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
# Weights in other formats than the engines', copies for other frameworks, and pictures.
_NEVER = """
    *.msgpack *.h5 *.ot *.onnx *.onnx_data *.tflite *.mlmodel *.png *.jpg *.gif *.mp4 original/* onnx/* coreml/*
    openvino/* .git* .cache/*
""".split()
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")  # programs in disguise, which only old models need


@dataclass(frozen=True)
class RemoteModel:
    """A model that is not a folder of this machine."""

    scheme: Literal["hf", "s3"]
    name: str  # "organisation/name", or "bucket/folder"
    revision: str = ""  # a branch, tag or commit of the hub

    def __str__(self) -> str:
        return f"{self.scheme}://{self.name}" + (f"@{self.revision}" if self.scheme == "hf" else "")

    @property
    def slug(self) -> str:
        """The model as a file's name."""
        return _slug(str(self))

    @property
    def family(self) -> str:
        """The same for all revisions, as a file's name."""
        return _slug(f"{self.scheme}://{self.name}")


def _slug(text: str) -> str:
    """No two texts have the same."""
    return f"{re.sub('[^a-zA-Z0-9_.-]+', '--', text)}--{sha256(text.encode()).hexdigest()[:8]}"


def read_source(value: Any) -> Any:
    """Raises: ValueError for an unknown or incomplete address. Whatever has no scheme is a folder."""
    if not isinstance(value, str) or "://" not in value:
        return value
    scheme, _, rest = value.partition("://")
    if scheme not in _WRONG:
        raise ValueError(f"{value!r} has to be a folder, hf://… or s3://…")
    match = (_HUB if scheme == "hf" else _BUCKET).fullmatch(rest)
    if match is None or {".", ".."} & set(rest.partition("@")[0].split("/")):
        raise ValueError(f"{value!r} {_WRONG[scheme]}")
    if scheme == "s3":
        return RemoteModel("s3", match["name"])
    return RemoteModel("hf", match["name"], match["revision"] or "main")


# A field of the pools file.
ModelSource = Annotated[Path | RemoteModel, BeforeValidator(read_source), WithJsonSchema({"type": "string"})]


@dataclass(frozen=True)
class RemoteFile:
    name: str  # its path within the model, with "/"
    size: int  # bytes
    # "sha256:…", "git:…" (SHA-1 as git makes it) or "md5:…"; "": the source tells none.
    checksum: str = ""


def wanted(files: Sequence[RemoteFile], part: Part) -> list[RemoteFile]:
    """The files to fetch. Raises: ValueError for a name that would leave the model's folder."""
    for file in files:
        if file.name.startswith("/") or {"", ".", ".."} & set(file.name.split("/")) or "\\" in file.name:
            raise ValueError(f"a file has the name {file.name[:100]!r}")
    useful = [f for f in files if not _is(f, _NEVER)]
    if part == "text":
        return [f for f in useful if _is(f, _TEXT)]
    safe = any(_is(f, ("*.safetensors",)) for f in useful)
    return [f for f in useful if not (safe and _is(f, _PICKLED))]


def _is(file: RemoteFile, patterns: Sequence[str]) -> bool:
    return any(fnmatch(file.name, pattern) for pattern in patterns)
