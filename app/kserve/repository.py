"""Bodies of Triton's extension for the model repository."""

from app.schemas.body import Body


class IndexBody(Body):
    ready: bool = False  # only models that are ready


class LoadParameters(Body):
    """None: the pools file says how a model is loaded, and a load can't change it."""


class LoadBody(Body):
    parameters: LoadParameters | None = None


class UnloadParameters(Body):
    unload_dependents: bool = False  # a model's adapters sleep with it anyway, and nothing else depends on it


class UnloadBody(Body):
    parameters: UnloadParameters | None = None
