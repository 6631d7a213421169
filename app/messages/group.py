"""`Member` in `member:<id>`, of an engine that spans several hosts, and its `Group` in `group:<id>`."""

from msgspec import Struct

from app.ids import WorkerId
from app.messages.lease import CacheGroup
from app.messages.wanted import Adapter
from app.messages.wire import decoder

NODE_PORTS = 8  # consecutive ones, that the leader of an engine on several hosts listens on for the others


class Member(Struct, frozen=True, array_like=True):
    """A process of an engine that spans several hosts."""

    worker: WorkerId
    address: str  # where the others reach it
    port: int  # the first of `NODE_PORTS` that were free there: if it leads, the others meet it at these
    ready: bool = False  # it leads, and its engine answers
    leaving: bool = False  # it was told to end
    ended: bool = False  # it leads, and all its requests are over
    weights: str = ""  # the version that the engine has, if it leads
    caches: list[int] = []  # as in its leader's Lease: of the ranks on its host
    block_size: int = 0  # tokens in a KV block of the engine, if it leads and is ready
    groups: list[CacheGroup] = []  # the same of these: as in `EngineInfo`
    unindexed: str = ""  # the same: as in `Worker`
    adapters: list[Adapter] = []  # if it leads: those whose files are to be on each host
    lora_store: str = ""  # the same: the folder in which the engine looks for them, on each host
    has_adapters: list[str] = []  # if it follows: those of them whose files are there, by `Adapter.versioned`
    lacks_adapters: dict[str, str] = {}  # the same: why the files of others can't be there


class Group(Struct, frozen=True, array_like=True):
    """The processes of one engine. It never changes: without one of them, all end, and a new one is formed."""

    epoch: int  # higher than those of all earlier groups of the pool
    members: list[Member]  # by their node's rank, as they were then; the first one leads


decode_member = decoder(Member)
decode_group = decoder(Group)
