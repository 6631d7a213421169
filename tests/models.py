"""Models and pools that tests make up, of the mock engine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.dispatch.asking import Asking
from app.dispatch.models.models import Model, load_models
from app.dispatch.runtime import Deployment
from app.errors import SettingsError
from app.ids import PoolId
from app.pools.pools_file import load_pools
from app.pools.schema import Pool, PoolsFile
from app.settings import load_settings
from app.telemetry import Meters
from app.tokenizing.tokenizer import Tokenizer, load_tokenizer


def mock(**fields: Any) -> Pool:
    """A pool, with other values in any fields."""
    return Pool(**{"model": "m", "engine": "mock"} | fields)


MODEL_DIR = mock().model_dir


def model(name: str = "m", tokenizer: Tokenizer | None = None, **fields: Any) -> Model:
    """A model that takes 100 tokens, with other values in any fields."""
    usual = {"pools": (PoolId("p"),), "prefill_pools": (), "select": None, "context_len": 100, "meters": Meters(name)}
    return Model(**{"name": name, "tokenizer": tokenizer or load_tokenizer(MODEL_DIR)} | usual | fields)


def models_of(**pools: Pool | Mapping[str, Any]) -> dict[str, Model]:
    """The models of these pools, by name."""
    return load_models(PoolsFile.model_validate({"pools": pools}))


def asking(models: dict[str, Model], pools: Mapping[PoolId, Pool] | None = None, **settings: Any) -> Asking:
    """Somebody who may ask for all of these models."""
    return Asking(Deployment(load_settings(**settings), pools or {}, models))


def templated(folder: Path, source: str) -> Tokenizer:
    """The mock's tokenizer with this chat template."""
    file = folder / "template.jinja"
    file.write_text(source)
    return Tokenizer(MODEL_DIR, file)


def pools_error(folder: Path, text: str) -> str:
    """The message that refuses this pools file, which it names."""
    file = folder / "pools.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        load_pools(file)
    assert str(file) in error.value.message
    return error.value.message
