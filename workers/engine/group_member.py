"""A process among those that are one engine on several hosts: they gather, and watch each other."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event, Lock, Thread
from typing import Any, cast

from msgspec.structs import replace
from redis import Redis
from redis.exceptions import RedisError

from app.engines.base import Node
from app.engines.ports import free_ports
from app.ids import PoolId, WorkerId
from app.messages.group import NODE_PORTS, Group, Member, decode_group, decode_member
from app.messages.wire import encode
from app.running.loops import keep_in_thread
from app.settings import Settings
from app.store import sync_client
from app.store.scripts import FORM_GROUP
from app.telemetry import logger
from workers.engine.group_forming import form, node_of

log = logger(__name__)

_LOOK_S = 0.1
_TIMEOUT_S = 2.0  # for Redis
_LOADING_S = 30.0  # a lease's life until the engine is loaded: imports may keep all threads waiting for seconds
_GROUP_MS = 60_000  # how long a group can be read


class GroupMember(Thread):
    """Renews its lease and looks at the others', in a thread of its own, since the engine's loop may be busy.

    When another one is lost, so is the engine: it ends the process, whose exit guard ends what the process has started.
    """

    def __init__(self, settings: Settings, pool: PoolId, nodes: int, worker: WorkerId, address: str) -> None:
        """`nodes`: how many members a group has. `address`: where the others reach this one."""
        super().__init__(name="group", daemon=True)
        self._settings, self._keys, self._pool, self._nodes = settings, settings.keys, pool, nodes
        self._own = Member(worker, address, free_ports(NODE_PORTS))
        self._telling = Lock()
        self._members: list[Member] = []  # of the group, by rank, as they last told
        self._came_ms = 0
        self._waiting = 0  # that were seen to wait, this one too
        self._steady_at = 0.0  # monotonic: since when Redis can be believed that a member has no lease
        self._ended = Event()
        self.weights: Callable[[], str] = str  # the version that the engine has, if this one leads
        self.formed = Event()
        self.over = Event()  # the leader has ended as it should

    # From any thread.

    @property
    def node(self) -> Node:
        """The worker's place in its group. Valid once the group is formed."""
        return node_of(Group(0, self._members), self._own.worker)

    @property
    def leader(self) -> Member:
        """The leader, as it last told of itself. Valid once the group is formed."""
        return self._members[0]

    @property
    def followers(self) -> list[Member]:
        """The others of a group that this one leads, as they last told. Valid once the group is formed."""
        return self._members[1:]

    def followers_caches(self, ranks: int) -> list[int]:
        """Numbers, as in a Lease, of those of `ranks` data-parallel ranks that are not on the leader's host."""
        unknown = [0] * (ranks // self._nodes)
        return [number for member in self.followers for number in member.caches or unknown]

    def tell(self, **changes: Any) -> None:
        """Changes fields of its Member; the others see them with the next look."""
        with self._telling:
            self._own = replace(self._own, **changes)

    def end(self) -> None:
        """The engine ends: so do the others, without a fault."""
        self.tell(ended=True)
        self._ended.set()
        self.join()

    # In its thread.

    def run(self) -> None:
        client: Redis | None = None

        def look() -> None:
            nonlocal client
            try:
                client = client or sync_client(self._settings.redis_url, _TIMEOUT_S, self._keys.home)
                self._look(client)
            except Exception:
                self._distrust()
                if client is not None:
                    client.close()
                client = None
                raise

        keep_in_thread("group_not_seen", look, partial(self._ended.wait, _LOOK_S))
        if client is not None:
            with suppress(RedisError, OSError):  # then its lease expires
                self._renew(client)
            client.close()

    def _distrust(self) -> None:
        """Redis was away, or has lost leases: living members renew theirs first."""
        self._steady_at = time.monotonic() + self._settings.intervals.steady_s

    def _look(self, client: "Redis") -> None:
        if self.weights() != self._own.weights:
            self.tell(weights=self.weights())
        if not self.formed.is_set():
            self._gather(client)
        else:
            self._watch(client)

    def _gather(self, client: "Redis") -> None:
        keys, own = self._keys, self._own
        gathering = keys.gathering(self._pool)
        if not self._came_ms:
            seconds, micros = client.time()
            self._came_ms = seconds * 1000 + micros // 1000
        # At once: whoever is in no group and does not wait may come, and nobody can have taken it meanwhile.
        pipe = client.pipeline(transaction=True)
        pipe.set(keys.member(own.worker), encode(own), px=round(self._settings.lease_ttl_s * 1000))
        pipe.get(keys.group(own.worker))
        pipe.zrange(gathering, 0, -1)
        _, raw_group, waiting = pipe.execute()
        if raw_group is not None:
            self._take(decode_group(raw_group))
            return
        workers = [WorkerId(one.decode()) for one in waiting]
        if own.worker not in workers:
            client.zadd(gathering, {own.worker: self._came_ms})
            return
        raw_by_worker = dict(zip(workers, client.mget([keys.member(one) for one in workers]), strict=True))
        if dead := [one for one, raw in raw_by_worker.items() if raw is None]:
            client.zrem(gathering, *dead)
        living = [decode_member(cast(bytes, raw)) for raw in raw_by_worker.values() if raw is not None]
        if len(living) != self._waiting:
            self._waiting = len(living)
            log.info("waiting_for_members", pool=self._pool, waiting=len(living), nodes=self._nodes)
        if members := form(living, self._nodes, own.worker):
            group = Group(int(client.incr(keys.group_epoch(self._pool))), list(members))
            mine = [keys.group(member.worker) for member in members]
            names = [member.worker for member in members]
            # The next look reads it.
            client.eval(FORM_GROUP, 1 + len(mine), gathering, *mine, encode(group), _GROUP_MS, *names)

    def _take(self, group: Group) -> None:
        self._members = group.members
        self.formed.set()
        hosts = [member.address for member in group.members]
        log.info("group_formed", pool=self._pool, epoch=group.epoch, rank=self.node.rank, hosts=hosts)

    def _watch(self, client: "Redis") -> None:
        # At once: where Redis loses all leases between two commands, only the others' would seem lost.
        pipe = client.pipeline(transaction=True)
        self._renew(pipe)
        pipe.mget([self._keys.member(member.worker) for member in self._members])
        renewal, raw_members = cast(tuple[bytes | None, list[bytes | None]], tuple(pipe.execute()))
        lost_members = [member for member, raw in zip(self._members, raw_members, strict=True) if raw is None]
        if renewal is None:  # Redis may have lost all of them
            self._distrust()
        self._members = [
            member if raw is None else decode_member(raw)
            for member, raw in zip(self._members, raw_members, strict=True)
        ]
        if self.leader.ended:
            self.over.set()
            self._ended.set()
        elif lost_members and time.monotonic() > self._steady_at:
            log.critical("group_lost", pool=self._pool, members=[member.address for member in lost_members])
            os._exit(1)  # what is left of the engine can't end cleanly
        elif self._leads and not self._own.leaving and any(member.leaving for member in self._members):
            log.info("member_leaves", pool=self._pool)
            self.tell(leaving=True)
            os.kill(os.getpid(), signal.SIGTERM)

    def _renew(self, client: "Redis") -> None:
        """Asks for the lease that was there, too."""
        life_s = self._settings.lease_ttl_s if self.leader.ready else max(_LOADING_S, self._settings.lease_ttl_s)
        client.set(self._keys.member(self._own.worker), encode(self._own), px=round(life_s * 1000), get=True)

    @property
    def _leads(self) -> bool:
        return self.leader.worker == self._own.worker
