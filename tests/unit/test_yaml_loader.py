"""YAML of configuration files."""

import pytest
import yaml

from app.pools.yaml_loader import read_yaml


def test_times_are_texts_whatever_a_library_has_made_of_dates(monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-format-enforcer, which vLLM imports, replaces PyYAML's constructor of dates for the whole process."""
    text = "{a: 2027-01-31, b: 2027-02-30 10:00:00, c: 1:30, d: 2}"
    document = {"a": "2027-01-31", "b": "2027-02-30 10:00:00", "c": "1:30", "d": 2}
    assert read_yaml(text) == document
    monkeypatch.setitem(yaml.SafeLoader.yaml_constructors, "tag:yaml.org,2002:timestamp", lambda *_: None)
    assert read_yaml(text) == document
