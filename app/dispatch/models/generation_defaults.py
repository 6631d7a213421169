"""Defaults of sampling parameters, from the model's own generation_config.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.errors import SettingsError
from app.settings import explain

_NAME = "generation_config.json"
_Penalty = Annotated[float, Field(ge=-2, le=2)]


class _GenerationConfig(BaseModel):
    """The fields of Hugging Face's file that concern sampling."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None


def generation_defaults(model_dir: Path) -> Mapping[str, float]:
    """Values by the file's names; empty without a file. Raises: SettingsError naming file, key and value."""
    path = model_dir / _NAME
    try:
        doc = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise SettingsError(f"{path}: {exc}") from exc
    try:
        return _GenerationConfig.model_validate(doc).model_dump(exclude_none=True)
    except ValidationError as exc:
        raise SettingsError(f"{path}: {explain(exc, '.'.join)}. A pool can have 'generation_config: none'.") from exc
