"""Reads the tenants file (YAML); what does not parse raises SettingsError naming key and value."""

from pathlib import Path

import yaml
from pydantic import ValidationError

from app.errors import SettingsError
from app.pools.yaml_loader import read_yaml
from app.settings import explain
from app.tenants.wanted import TenantsFile


def load_tenants(path: Path) -> TenantsFile:
    """Raises: SettingsError naming the file, the key and the value."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{path}: {exc}") from exc
    return parsed(text, str(path))


def parsed(text: str, path: str) -> TenantsFile:
    """Raises: SettingsError."""
    try:
        doc = read_yaml(text)
    except yaml.YAMLError as exc:
        raise SettingsError(f"{path}: not YAML: {exc}") from exc
    if not isinstance(doc, dict) or not doc:
        raise SettingsError(f"{path}: has to be a mapping with the keys 'tenants' and 'prices', and is {doc!r}")
    try:
        return TenantsFile.model_validate(doc)
    except ValidationError as exc:
        raise SettingsError(f"{path}: {explain(exc, '.'.join)}") from exc
