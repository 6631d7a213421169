"""A tenant as Redis has it now, for processes that don't keep up with all of them."""

from app.ids import KeyId, TenantId
from app.keys import Keys
from app.store import Wire
from app.tenants.records import Client, Tenant, decode_tenant


async def client_of(wire: Wire, keys: Keys, tenant: TenantId, key: KeyId) -> Client:
    """Whose a request is that came before. Raises: StoreDown."""
    (raw,) = await wire.execute([("HGET", keys.tenants(), tenant)])
    return Client(Tenant(tenant) if raw is None else decode_tenant(raw), key)
