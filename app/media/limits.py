"""The bounds of one part of a request. `app/settings.py` says what each one means."""

from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

from msgspec import Struct

from app.settings import Settings


class MediaLimits(Struct, frozen=True):
    """Times in seconds, sizes in bytes."""

    hosts: frozenset[str]
    networks: tuple[IPv4Network | IPv6Network, ...]
    folder: Path | None
    count: int
    size: int
    pixels: int
    frames: int
    video_s: float
    connect_s: float
    fetch_s: float
    redirects: int
    decode_s: int
    decode_bytes: int
    sound_size: int
    sound_s: float
    sound_decode_s: int
    waiting: int  # of all that one process has not decoded yet

    @classmethod
    def of(cls, settings: Settings) -> "MediaLimits":
        return cls(
            hosts=settings.media_hosts,
            networks=tuple(ip_network(network) for network in sorted(settings.media_networks)),
            folder=settings.media_folder,
            count=settings.media_count,
            size=settings.media_bytes,
            pixels=settings.media_pixels,
            frames=settings.media_frames,
            video_s=settings.media_video_s,
            connect_s=settings.media_connect_s,
            fetch_s=settings.media_fetch_s,
            redirects=settings.media_redirects,
            decode_s=settings.media_decode_s,
            decode_bytes=settings.media_decode_bytes,
            sound_size=settings.media_sound_bytes,
            sound_s=settings.media_sound_s,
            sound_decode_s=settings.media_sound_decode_s,
            waiting=settings.incoming_bytes,
        )
