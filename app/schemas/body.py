"""The base of all request schemas: strict, frozen, and shown in the API's documentation."""

from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")
# Validation of a list ends at its first error: a million errors would be a million objects with messages.
Some = Annotated[list[T], Field(fail_fast=True)]
_ASKED = "_asked"  # not one of pydantic's private attributes, which it sets up anew for each class above this one
MOST = 4096  # messages of a conversation, parts of a message, tokens with a bias


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def openapi(cls) -> dict[str, Any]:
        """A value for `openapi_extra`: handlers parse the body themselves, without FastAPI's detour over dicts."""
        schema = inlined(cls.model_json_schema())
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


class Hints(Body):
    """Fields by which some clients say in parts and tools where a cached prefix may end. No effect: all are cached."""

    cache_control: Annotated[dict[str, Any] | None, Field(exclude=True)] = None
    prompt_cache_breakpoint: Annotated[dict[str, Any] | None, Field(exclude=True)] = None


class NamesModel(Body):
    """A body that names a model, or an alias of one."""

    model: str = ""  # if one is served, clients need not name it

    def renamed(self, model: str) -> Self:
        """A copy with the model that the alias stands for. What was derived from the body is forgotten."""
        copy = self.model_copy(update={"model": model})
        for name in [name for name in vars(copy) if name not in type(copy).model_fields]:
            del vars(copy)[name]
        vars(copy)[_ASKED] = self.asked
        return copy

    @property
    def asked(self) -> str:
        """The client's name for the model."""
        return str(vars(self).get(_ASKED, self.model))


class Query(Body):
    """A URL's query, whose values are all texts."""

    model_config = ConfigDict(strict=False)

    @classmethod
    def openapi(cls) -> dict[str, Any]:
        fields = cls.model_json_schema()["properties"].items()
        return {"parameters": [{"name": name, "in": "query", "schema": schema} for name, schema in fields]}


def inlined(schema: dict[str, Any]) -> Any:
    """The schema without `$defs` and discriminators, which don't work in the middle of a document."""
    defs = schema.pop("$defs", {})

    def inline(part: Any) -> Any:
        if isinstance(part, dict):
            whole = defs[part["$ref"].rpartition("/")[2]] if "$ref" in part else part
            return {key: inline(value) for key, value in whole.items() if key != "discriminator"}
        return [inline(value) for value in part] if isinstance(part, list) else part

    return inline(schema)
