"""Simulated hardware that moves bytes: a network card, host memory, a disk."""

import asyncio


class Lane:
    """Makes one transfer after the other."""

    def __init__(self, gb_per_s: float, speedup: float) -> None:
        self._bytes_per_s = gb_per_s * 1e9 * speedup
        self._free_at = 0.0  # when the last transfer ends, on the loop's clock
        self._moved = self._busy_s = 0.0  # bytes and seconds since the start

    @property
    def speed(self) -> float:
        """Bytes a second, the mean since the start; 0: nothing was moved, or it took no time."""
        return self._moved / self._busy_s if self._busy_s else 0.0

    def seconds(self, size: int) -> float:
        """Seconds that so many bytes take."""
        return size / self._bytes_per_s

    async def move(self, size: int) -> None:
        """Returns when so many bytes have been moved."""
        clock, seconds = asyncio.get_running_loop().time, self.seconds(size)
        self._moved, self._busy_s = self._moved + size, self._busy_s + seconds
        self._free_at = max(self._free_at, clock()) + seconds
        if self._free_at > clock():
            await asyncio.sleep(self._free_at - clock())
