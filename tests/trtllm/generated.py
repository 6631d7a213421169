"""Modules made from a contract: classes that take and have what stands there, and nothing else."""

import ast
import builtins
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, Union

from tests.trtllm.contract import Contract, Use

_DICTS = {"StrictBaseModel", "BaseLlmArgs"}  # pydantic's: their errors are ValueErrors


class _TensorType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return hasattr(value, "shape")


class _Tensor(metaclass=_TensorType):
    pass


class _Names(dict[str, Any]):
    """Names that annotations use; an unknown one may be anything."""

    def __missing__(self, _name: str) -> Any:
        return object


class Package:
    """The modules, and what of them has been used."""

    def __init__(self, contract: Contract, engines: Mapping[str, Callable[..., Any]]) -> None:
        """`engines`: by class, what makes that its methods are handed on to, of this and its constructor's arguments.

        Of one with a class method, what that returns.
        """
        self.contract, self.uses, self._engines = contract, set[Use](), engines
        self.models: list[Any] = []
        standard_names = {name: getattr(typing, name) for name in typing.__all__} | vars(builtins)
        self._names = _Names({**standard_names, "Tensor": _Tensor})
        self.classes: dict[str, type] = {}
        for name, spec in contract["classes"].items():
            self.classes[name] = self._names[name] = self._made(name, spec)
        self.modules = self._modules()

    def make(self, class_name: str, /, model: Any = None, **values: Any) -> Any:
        """An object as the engine gives it, unchecked. `model` has its methods."""
        instance = object.__new__(self.classes[class_name])
        vars(instance).update(_values=values, _model=model)
        return instance

    def _modules(self) -> dict[str, types.ModuleType]:
        modules: dict[str, types.ModuleType] = {}
        for name, spec in self.contract["classes"].items():
            parts = spec["module"].split(".")
            for end in range(1, len(parts) + 1):
                path = ".".join(parts[:end])
                module = modules.setdefault(path, types.ModuleType(path))
                module.__path__ = []
                if end > 1:
                    setattr(modules[".".join(parts[: end - 1])], parts[end - 1], module)
            setattr(modules[spec["module"]], name, self.classes[name])
        auto_deploy = modules["tensorrt_llm._torch.auto_deploy"] = types.ModuleType("tensorrt_llm._torch.auto_deploy")
        auto_deploy.LLM = type("LLM", (self.classes["LLM"],), {"autodeploy": True})  # type: ignore[attr-defined]
        modules["tensorrt_llm._torch"].auto_deploy = auto_deploy  # type: ignore[attr-defined]
        return modules

    def _made(self, name: str, spec: dict[str, Any]) -> type:
        members: dict[str, Any] = {"__slots__": ("__dict__",)}
        properties = [m for m, s in spec["methods"].items() if s.get("property")]
        for field in (*spec["fields"], *properties):
            members[field] = self._field(name, field)
        for method, method_spec in spec["methods"].items():
            if not method_spec.get("property") and method != "__init__":
                members[method] = self._method(name, method, method_spec)
        if name in self.contract["async_iterables"]:
            members["__aiter__"] = lambda it: it
            members["__anext__"] = lambda it: vars(it)["_model"].step(it)
        is_engine = name in self._engines and "__init__" in spec["methods"]
        members["__init__"] = self._engine_init(name, spec) if is_engine else self._init(name, spec)
        return type(name, (), members)

    def _field(self, owner: str, field: str) -> property:
        def read(it: Any) -> Any:
            self.uses.add(Use(owner, field))
            return vars(it)["_values"][field]

        return property(read)

    def _method(self, owner: str, method: str, said: dict[str, Any]) -> Callable[..., Any]:
        signature = self._signature(said)

        def call(it: Any, *args: Any, **kwargs: Any) -> Any:
            self.uses.add(Use(owner, method))
            model = partial(self._engines[owner], self) if said.get("classmethod") else vars(it)["_model"]
            bound = signature.bind(*args, **kwargs)
            for parameter, value in bound.arguments.items():
                self.uses.add(Use(owner, f"{method}.{parameter}"))
                self._check(f"{method}({parameter}", value, signature.parameters[parameter].annotation)
            return model(**bound.arguments) if said.get("classmethod") else getattr(model, method)(**bound.arguments)

        return classmethod(call) if said.get("classmethod") else call  # type: ignore[return-value]

    def _init(self, name: str, spec: dict[str, Any]) -> Callable[..., None]:
        error = ValueError if _DICTS & set(spec["bases"]) else TypeError

        def init(it: Any, **given: Any) -> None:
            for key, value in given.items():
                self.uses.add(Use(name, key))
                if key not in spec["fields"]:
                    raise error(f"{name} has no {key}")
                self._check(f"{name}({key}", value, spec["fields"][key]["annotation"])
            defaults = {key: _default(field["default"]) for key, field in spec["fields"].items()}
            vars(it).update(_values=defaults | given, _model=None)

        return init

    def _engine_init(self, name: str, spec: dict[str, Any]) -> Callable[..., None]:
        params = spec["methods"]["__init__"]["params"]
        own = {p["name"]: p["annotation"] for p in params if p["kind"] != "var_keyword"}
        more = any(p["kind"] == "var_keyword" for p in params)
        fields = self.contract["classes"]["TorchLlmArgs"]["fields"] if more else {}

        def init(it: Any, **given: Any) -> None:
            for key, value in given.items():
                self.uses.add(Use("TorchLlmArgs", key) if more else Use(name, f"__init__.{key}"))
                if key not in (fields if more else own):
                    raise ValueError(f"{name} has no {key}")
                self._check(f"{name}({key}", value, own[key] if key in own else fields[key]["annotation"])
            model = self._engines[name](self, given)
            self.models.append(model)
            vars(it).update(_values={}, _model=model)

        return init

    def _signature(self, said: dict[str, Any]) -> inspect.Signature:
        parameters = [
            inspect.Parameter(
                p["name"],
                getattr(inspect.Parameter, p["kind"].upper()),
                default=p.get("default", inspect.Parameter.empty),
                annotation=p.get("annotation"),
            )
            for p in said["params"]
            if p["kind"].startswith(("positional", "keyword"))
        ]
        return inspect.Signature(parameters)

    def _check(self, where: str, value: Any, annotation: str | None) -> None:
        if annotation is None:
            return
        try:
            expected_type = eval(annotation, {}, self._names)
        except (AttributeError, TypeError):  # of a module that isn't there
            return
        if not _fits(value, expected_type):
            raise TypeError(f"{where}={value!r}) is no {annotation}")


def _fits(value: Any, wanted: Any) -> bool:
    origin, args = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted in (object, Any):
        return True
    if wanted is None or wanted is type(None):
        return value is None
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in args)
    if origin is Literal:
        return value in args
    if origin is list:
        return isinstance(value, list) and all(_fits(each, args[0]) for each in value)
    if origin is not None:
        return isinstance(value, origin)
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted) if isinstance(wanted, type) else True


def _default(text: str | None) -> Any:
    if text is None or text.startswith("factory:"):
        return [] if text == "factory:list" else None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):  # a name
        return text
