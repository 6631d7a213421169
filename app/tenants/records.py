"""A tenant (a team), its API keys, and prices: what Redis keeps of them."""

from msgspec import Struct, structs

from app.ids import KeyId, TenantId
from app.messages.wire import decoder
from app.tenants.limit_table import UNLIMITED, TenantLimits

DEFAULT = TenantId("default")  # of keys that name no tenant, and of requests where no keys are required


class Rate(Struct, frozen=True, array_like=True):
    """Limits per minute, over all processes."""

    account: str  # what is left of it is in `spent:<account>`
    requests: int = 0  # 0: no limit, here and below
    tokens: int = 0
    spared: float = 0.0  # share of the limits that is left to other requests of the account


class Price(Struct, frozen=True, array_like=True):
    """A model's price, in money (any currency, one for all), for a million tokens; and for one picture."""

    input: float = 0.0  # also of embeddings
    cached_input: float | None = None  # None: as `input`
    output: float = 0.0
    image: float = 0.0


class Tenant(Struct, frozen=True, array_like=True):
    name: TenantId
    created: float = 0.0  # seconds since the epoch
    weight: float = 1.0  # its share of a full fleet, beside those of the other tenants that want it
    limits: TenantLimits = UNLIMITED
    content_logged: bool = False  # it agreed that prompts and answers are logged
    salt: str = ""  # of its KV, by `kv_store.salts.new_salt`, which no other tenant shares; "": it is shared


class ApiKey(Struct, frozen=True, array_like=True):
    """A client's key. Only its holder knows the key itself."""

    name: str
    digest: bytes  # SHA-256 of the key
    created: float  # seconds since the epoch
    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    id: KeyId = KeyId("")  # random; empty if an older version made the key
    file_quota: int | None = None  # bytes of all its files; None: as the settings say, here and below
    min_priority: int | None = None  # the most urgent priority that it may ask for
    # Of its batches' lines alone. With neither, lines are counted with the other requests.
    batch_requests_per_min: int | None = None
    batch_tokens_per_min: int | None = None
    tenant: TenantId = DEFAULT
    more: TenantLimits = UNLIMITED  # all others: those above are None in it, since older versions know them there

    @property
    def owner(self) -> KeyId:
        """The owner of all that is made with this key. Unlike a name, an id is never given to another key."""
        return self.id or KeyId(self.name)

    @property
    def limits(self) -> TenantLimits:
        return structs.replace(
            self.more,
            requests_per_min=self.requests_per_min,
            tokens_per_min=self.tokens_per_min,
            file_quota=self.file_quota,
            min_priority=self.min_priority,
            batch_requests_per_min=self.batch_requests_per_min,
            batch_tokens_per_min=self.batch_tokens_per_min,
        )

    @property
    def batch_rate(self) -> Rate | None:
        """Lines without limits of their own share those of online requests, and leave half to these."""
        if self.batch_requests_per_min is None and self.batch_tokens_per_min is None:
            return _rate(self.owner, self.requests_per_min, self.tokens_per_min, 0.5)
        return _rate(f"{self.owner}:batch", self.batch_requests_per_min, self.batch_tokens_per_min)


class Client(Struct, frozen=True):
    """The sender of a request: a key, or somebody whose token another service has signed."""

    tenant: Tenant = Tenant(DEFAULT)
    key: KeyId = KeyId("")  # the owner of what is made; "" where no keys are required
    name: str = ""  # the key's
    limits: TenantLimits = UNLIMITED  # the key's own
    within: TenantLimits = UNLIMITED  # the stricter of the key's and the tenant's, as `limits.together` says

    @property
    def turn(self) -> str:
        """The tenant with which it shares a turn where clients wait in turns; its own key, if it has no tenant."""
        return self.key if self.tenant.name == DEFAULT else self.tenant.name


NOBODY = Client()


def _rate(account: str, requests: int | None, tokens: int | None, spare: float = 0.0) -> Rate | None:
    return Rate(account, requests or 0, tokens or 0, spare) if requests or tokens else None


decode_api_key = decoder(ApiKey)
decode_tenant = decoder(Tenant)
decode_price = decoder(Price)
