"""Any value of a message, for tests that try many."""

import types
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st
from msgspec import Struct

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=8),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=9),
    msgspec.Raw: st.sampled_from([msgspec.Raw(raw) for raw in (b"\xa1x", b"\x03", b"\xc4\x01y")]),
    types.NoneType: st.none(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of an annotation, as msgpack can carry it."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if isinstance(kind, NewType):
        return values(kind.__supertype__)
    if kind is Any:  # an engine's own words: JSON
        return st.none() | st.integers(0, 9) | st.lists(st.text(max_size=2), max_size=2)
    if isinstance(kind, type) and issubclass(kind, Struct):
        return structs(kind)
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values, args))
    if origin is list:
        return st.lists(values(args[0]), max_size=2)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values(args[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, args))
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=2)
    raise AssertionError(f"no strategy for {kind}")


def structs(cls: type[Struct]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{name: values(hints[name]) for name in cls.__struct_fields__})
