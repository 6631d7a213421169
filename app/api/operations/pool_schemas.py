"""Bodies that change aliases and pools' limits at run time."""

from typing import Annotated

from pydantic import Field

from app.pools.schema import Alias, AliasName, Count, NotNegative, Share
from app.schemas.body import Body


class AliasChanges(Body):
    """An alias that is null is as in the pools file again; one that isn't given stays."""

    aliases: Annotated[dict[AliasName, Alias | None], Field(max_length=1000)]


class AliasTable(Body):
    """All aliases."""

    aliases: dict[str, Alias]


class LimitChanges(Body):
    """A field that is null gets the pools file's value again; one that isn't given stays."""

    max_queued: Annotated[NotNegative, Field(le=2**31)] | None = None
    active_blocks: Share | None = None
    queued_tokens: Annotated[Count, Field(le=2**31)] | None = None
    remote_tokens: Annotated[NotNegative, Field(le=2**31)] | None = None
    remote_wait_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
