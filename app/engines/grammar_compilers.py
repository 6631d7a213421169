"""The processes that compile a grammar on trial, before an engine does with the same library."""

_MODULES = {
    "guidance": "app.grammars.process",
    "llguidance": "app.grammars.process",
    "outlines": "app.engines.outlines_process",
    "xgrammar": "app.engines.xgrammar_process",
}


def compiler_of(backend: str | None) -> str:
    """The module of the process for an engine's grammar backend; "" for one in Python, which dies of nothing."""
    return _MODULES.get(backend or "", "")
