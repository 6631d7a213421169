"""SGLang's plugin: what SGLang will find, and what it does with a grammar."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.engines import sglang_plugin


def test_the_package_names_the_plugin() -> None:
    entry_points = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    [(name, value)] = entry_points[sglang_plugin._GROUP].items()
    assert EntryPoint(name, value, sglang_plugin._GROUP).load() is sglang_plugin.register
    assert name == sglang_plugin._NAME


def test_what_sglang_does_not_load_is_not_relied_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set to nothing, SGLang takes all plugins."""
    plugin_entries = [EntryPoint("xylem", "a:b", sglang_plugin._GROUP)]
    monkeypatch.setattr(sglang_plugin, "entry_points", lambda **_: plugin_entries)
    for plugins, should_load in ((None, True), ("lora,xylem", True), ("lora", False), ("", True)):
        monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
        if plugins is not None:
            monkeypatch.setenv("SGLANG_PLUGINS", plugins)
        assert sglang_plugin.is_loaded() is should_load
    plugin_entries.clear()
    assert not sglang_plugin.is_loaded()


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
