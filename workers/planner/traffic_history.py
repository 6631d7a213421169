"""The traffic that there was. API replicas count it; the leader keeps it in Redis, for itself and for the next one."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from app.keys import Keys
from app.planner.observed import EDGES, TRAFFIC_WINDOW_S, Histogram, Traffic
from app.store import Command, Wire
from app.telemetry import logger

log = logger(__name__)

_SHORT, _LONG = int(TRAFFIC_WINDOW_S), 300  # seconds of a window
_KEPT_S: Mapping[int, int] = {_SHORT: 3600, _LONG: 8 * 86_400}
_TTL_S = max(_KEPT_S.values())
_LATE_S = 2.0  # by which a replica may write a window after its end
_THERE_S = 250  # how long ago a window may have begun that replicas' counts are still there of
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Traffic).decode
_decode_counted = msgspec.msgpack.Decoder(dict[str, Traffic]).decode


def merged(parts: Sequence[Traffic], begin: float, seconds: float) -> Traffic:
    """The sum of several replicas' traffic, or of the windows in a longer one."""
    return Traffic(
        begin,
        seconds,
        sum(part.arrivals for part in parts),
        prompts=_sum([part.prompts for part in parts]),
        answers=_sum([part.answers for part in parts]),
        met=sum(part.met for part in parts),
        ended=sum(part.ended for part in parts),
    )


def _sum(parts: Sequence[Histogram]) -> Histogram:
    columns = zip(*(part.counts for part in parts), strict=True)
    return Histogram([sum(column) for column in columns], sum(part.total for part in parts))


class TrafficHistory:
    def __init__(self, wire: Wire, keys: Keys, models: Iterable[str]) -> None:
        self._wire, self._keys = wire, keys
        # By model and seconds of a window: by its begin.
        self._known: dict[tuple[str, int], dict[int, Traffic]] = {(m, s): {} for m in models for s in _KEPT_S}
        self._models = list(models)
        self._next = 0  # number of the next window to be read

    def of(self, model: str) -> list[Traffic]:
        """Windows in their order, that don't overlap: long ones, and of the last hour short ones."""
        short, long = self._known[model, _SHORT], self._known[model, _LONG]
        first = min(short, default=None)
        older = [begin for begin in sorted(long) if first is None or begin + _LONG <= first]
        return [*(long[begin] for begin in older), *(short[begin] for begin in sorted(short))]

    async def load(self) -> None:
        """Reads what earlier leaders have kept. Raises: StoreDown."""
        replies = await self._wire.execute([("HGETALL", self._keys.traffic_of(*which)) for which in self._known])
        for (model, seconds), flat in zip(self._known, replies, strict=True):
            raw_windows = {int(begin): raw for begin, raw in zip(flat[::2], flat[1::2], strict=True)}
            self._known[model, seconds] = _understood(raw_windows)
        read = max((begin for model in self._models for begin in self._known[model, _SHORT]), default=0)
        self._next = read // _SHORT + 1

    async def read(self, now: float) -> None:
        """Reads what replicas have counted, and keeps it. `now`: by Redis' clock, as theirs. Raises: StoreDown."""
        first = max(self._next, int((now - _THERE_S) // _SHORT))
        numbers = range(first, int((now - _LATE_S) // _SHORT))
        if not numbers:
            return
        replies = await self._wire.execute([("HGETALL", self._keys.traffic(number)) for number in numbers])
        changes: dict[tuple[str, int], set[int]] = {which: set() for which in self._known}
        for number, flat in zip(numbers, replies, strict=True):
            counts = _counted(flat[1::2])
            if not counts:  # no replica counts yet: that isn't the same as no traffic
                continue
            begin = number * _SHORT
            for model in self._models:
                parts = [each[model] for each in counts if model in each]
                self._known[model, _SHORT][begin] = merged(parts, begin, _SHORT) if parts else _nothing(begin)
                changes[model, _SHORT].add(begin)
        for model in self._models:
            changes[model, _LONG] = self._summed_up(model, numbers.stop * _SHORT)
        await self._wire.execute(self._kept(changes, now))
        self._next = numbers.stop

    def _summed_up(self, model: str, until: int) -> set[int]:
        """Makes the long windows that are over before `until`; returns the new ones."""
        short, long = self._known[model, _SHORT], self._known[model, _LONG]
        begins = {begin - begin % _LONG for begin in short} - long.keys()
        new = {begin for begin in begins if begin + _LONG <= until}
        for begin in new:
            parts = [one for at, one in short.items() if begin <= at < begin + _LONG]
            long[begin] = merged(parts, begin, len(parts) * _SHORT)
        return new

    def _kept(self, changes: Mapping[tuple[str, int], set[int]], now: float) -> list[Command]:
        """Commands that write what is new, and forget what is too old here and there."""
        commands: list[Command] = []
        for which, new in changes.items():
            key, windows = self._keys.traffic_of(*which), self._known[which]
            if new:
                fields = [x for begin in sorted(new) for x in (begin, _encode(windows[begin]))]
                commands += [("HSET", key, *fields), ("EXPIRE", key, _TTL_S)]
            if old := [begin for begin in windows if begin < now - _KEPT_S[which[1]]]:
                commands.append(("HDEL", key, *old))
                for begin in old:
                    del windows[begin]
        return commands


def _nothing(begin: float) -> Traffic:
    none = Histogram([0] * (len(EDGES) + 1), 0)
    return Traffic(begin, _SHORT, 0, none, none)


def _understood(records: Mapping[int, bytes]) -> dict[int, Traffic]:
    try:
        windows = {begin: _decode(raw) for begin, raw in records.items()}
    except msgspec.DecodeError as exc:  # of another version
        log.warning("traffic_not_understood", error=str(exc))
        return {}
    return {begin: traffic for begin, traffic in windows.items() if _fits(traffic)}


def _counted(raws: Iterable[bytes]) -> list[dict[str, Traffic]]:
    """The traffic that each replica has counted, by model."""
    counts = []
    for raw in raws:
        try:
            of_models = _decode_counted(raw)
        except msgspec.DecodeError as exc:
            log.warning("traffic_not_understood", error=str(exc))
            continue
        counts.append({model: traffic for model, traffic in of_models.items() if _fits(traffic)})
    return counts


def _fits(traffic: Traffic) -> bool:
    """Whether it has these buckets: another version may have others."""
    return len(traffic.prompts.counts) == len(traffic.answers.counts) == len(EDGES) + 1
