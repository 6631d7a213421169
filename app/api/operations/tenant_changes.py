"""Reading and changing tenants, keys and prices for an admin's request."""

from collections.abc import Container, Iterable, Mapping
from typing import Any, TypeVar

from app.api.state import ApiState
from app.errors import RequestError, TenantsChanged
from app.schemas.body import Body
from app.tenants.registry import Change, Registry, change_command, read_commands, registry_of
from app.tenants.wanted import Wanted

W = TypeVar("W", bound=Wanted)


async def registry(state: ApiState) -> Registry:
    """Raises: StoreDown."""
    return registry_of(await state.wire.execute(read_commands(state.keys)))


async def change(state: ApiState, before: Registry, changes: Iterable[Change]) -> Registry:
    """All of them or none; as it is afterwards. Other replicas know within two seconds. Raises: TenantsChanged."""
    (was_written,) = await state.wire.execute([change_command(state.keys, before, changes)])
    if not was_written:
        raise TenantsChanged
    if state.settings.require_keys:
        await state.api_keys.refresh()
    return await registry(state)


def merged(schema: type[W], before: Mapping[str, Any], body: Body, without: Container[str] = ()) -> W:
    """The values before, with those that the body gives. Raises: RequestError, if these don't go together."""
    changes = {name: value for name, value in body.model_dump(exclude_unset=True).items() if name not in without}
    try:
        return schema.model_validate({**before, **changes})
    except ValueError as exc:  # pydantic's: each field is good by itself
        reason = exc.errors()[0]["msg"] if hasattr(exc, "errors") else str(exc)
        raise RequestError(f"{reason.removeprefix('Value error, ')}.") from exc
