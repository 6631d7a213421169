"""Plugins of SGLang and vLLM: what these engines will find, and what it does with a grammar."""

import tomllib
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from app.engines import sglang_plugin, vllm_plugin
from app.engines.video_colours import coloured
from tests.stack import ROOT


@pytest.mark.parametrize("plugin", [sglang_plugin, vllm_plugin], ids=["sglang", "vllm"])
def test_the_package_names_the_plugin(plugin: Any) -> None:
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    [(name, value)] = entry_points[plugin._GROUP].items()
    assert EntryPoint(name, value, plugin._GROUP).load() is plugin.register
    assert name == plugin._NAME


@pytest.mark.parametrize(
    ("plugin", "variable", "nothing_is_all"),
    [(sglang_plugin, "SGLANG_PLUGINS", True), (vllm_plugin, "VLLM_PLUGINS", False)],
    ids=["sglang", "vllm"],
)
def test_what_an_engine_does_not_load_is_not_relied_on(
    plugin: Any, variable: str, nothing_is_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set to nothing, SGLang takes all plugins, and vLLM none."""
    plugin_entries = [EntryPoint("xylem", "a:b", plugin._GROUP)]
    monkeypatch.setattr(plugin, "entry_points", lambda **_: plugin_entries)
    for plugins, should_load in ((None, True), ("lora,xylem", True), ("lora", False), ("", nothing_is_all)):
        monkeypatch.delenv(variable, raising=False)
        if plugins is not None:
            monkeypatch.setenv(variable, plugins)
        assert plugin.is_loaded() is should_load
    monkeypatch.delenv(variable)
    plugin_entries.clear()
    assert not plugin.is_loaded()


class Request:
    def __init__(self, params: Any, tokens: list[int], finished: bool = False) -> None:
        self.sampling_params = SimpleNamespace(custom_params=params)
        self.origin_input_ids, self.to_finish, self.accepted = tokens, None, list[int]()
        self.grammar = SimpleNamespace(accept_token=self._accept)
        self.finished = lambda: finished

    def _accept(self, token: int) -> None:
        if token == 9:
            raise ValueError("Tokens not accepted")
        self.accepted.append(token)

    def set_finish_with_abort(self, *why: Any) -> None:
        self.to_finish = why  # type: ignore[assignment]


@pytest.mark.parametrize(("params", "accepted"), [(None, []), ({}, []), ({"xylem_grammar": 2}, [3, 4])])
def test_a_new_grammar_accepts_what_is_out(params: Any, accepted: list[int]) -> None:
    """The tokens are accepted once, whether the grammar was there already or had to be compiled."""
    at_once, later, over = (Request(params, [1, 2, 3, 4], has_finished) for has_finished in (False, False, True))
    sglang_plugin._found(False, None, at_once)
    sglang_plugin._found(True, None, later)
    assert (at_once.accepted, later.accepted) == (accepted, [])
    sglang_plugin._compiled([later, over], None)
    assert (later.accepted, over.accepted) == (accepted, [])


def test_what_does_not_fit_ends_its_request() -> None:
    request = Request({"xylem_grammar": 1}, [1, 9])
    sglang_plugin._found(False, None, request)
    assert request.to_finish is not None
    assert request.to_finish[1] == 500


def test_frames_of_a_video_have_three_colours_as_torchvision_of_a_later_version_makes_them() -> None:
    torch = pytest.importorskip("torch")
    grey, rgb = torch.arange(8).reshape(2, 1, 2, 2), torch.arange(24).reshape(2, 3, 2, 2)
    assert torch.equal(coloured(grey), grey.expand(2, 3, 2, 2))
    assert coloured(rgb) is rgb


@pytest.mark.parametrize(("extra", "accepted"), [(None, []), ({}, []), ({"xylem_grammar": 2}, [3, 4])])
def test_a_new_grammar_of_vllm_accepts_what_is_out(extra: Any, accepted: list[int]) -> None:
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
