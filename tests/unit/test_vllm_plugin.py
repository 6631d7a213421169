"""vLLM's plugin: what vLLM will find, and what it does with a grammar."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.engines import vllm_plugin


def test_the_package_names_the_plugin() -> None:
    entry_points = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    [(name, value)] = entry_points[vllm_plugin._GROUP].items()
    assert EntryPoint(name, value, vllm_plugin._GROUP).load() is vllm_plugin.register
    assert name == vllm_plugin._NAME


def test_frames_of_a_video_have_three_colours_as_torchvision_of_a_later_version_makes_them() -> None:
    torch = pytest.importorskip("torch")
    grey, rgb = torch.arange(8).reshape(2, 1, 2, 2), torch.arange(24).reshape(2, 3, 2, 2)
    assert torch.equal(vllm_plugin._coloured(grey), grey.expand(2, 3, 2, 2))
    assert vllm_plugin._coloured(rgb) is rgb


def test_what_vllm_does_not_load_is_not_relied_on(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin_entries = [EntryPoint("xylem", "a:b", vllm_plugin._GROUP)]
    monkeypatch.setattr(vllm_plugin, "entry_points", lambda **_: plugin_entries)
    for plugins, should_load in ((None, True), ("lora,xylem", True), ("lora", False), ("", False)):
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        if plugins is not None:
            monkeypatch.setenv("VLLM_PLUGINS", plugins)
        assert vllm_plugin.is_loaded() is should_load
    monkeypatch.delenv("VLLM_PLUGINS")
    plugin_entries.clear()
    assert not vllm_plugin.is_loaded()


@pytest.mark.parametrize(("extra", "accepted"), [(None, []), ({}, []), ({"xylem_grammar": 2}, [3, 4])])
def test_a_new_grammar_accepts_what_is_out(extra: Any, accepted: list[int]) -> None:
    accepted_tokens: list[int] = []

    def accept(_request: str, tokens: list[int]) -> bool:
        accepted_tokens.extend(tokens)
        return 9 not in tokens

    create = vllm_plugin._behind(lambda _manager, _request: SimpleNamespace(accept_tokens=accept))
    params = SimpleNamespace(extra_args=extra)
    create(None, SimpleNamespace(sampling_params=params, request_id="r", prompt_token_ids=[1, 2, 3, 4]))
    assert accepted_tokens == accepted
    if extra:
        with pytest.raises(ValueError, match="does not fit"):
            create(None, SimpleNamespace(sampling_params=params, request_id="r", prompt_token_ids=[1, 9, 4]))
