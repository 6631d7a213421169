"""Tests that good media get through, the same by every way, and that bad ones hold nobody up."""

import asyncio
import io
import os
import signal
import threading
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from weakref import ref

import pytest
import pytest_asyncio
from msgspec.structs import replace
from PIL import Image

from app.batch.storage import Storage
from app.dispatch.media.media_reader import Asker, MediaReader, Origin
from app.errors import RequestError, Saturated
from app.media.decoder_pool import DecoderPool
from app.media.loader import MediaLoader
from app.media.picture import Picture
from app.media.refused import Refused
from app.media.source import MediaSource
from tests.background import until
from tests.media.answers import body, redirect, silent
from tests.media.hostile import PARAM, Guards, guards
from tests.media.hostile_cases import NAMES
from tests.media.hostile_server import INNER, OUTER, Names
from tests.media.samples import chunk, picture, png, video
from tests.speech.samples import encoded, tone, wav

pytestmark = pytest.mark.asyncio(loop_scope="module")

RED, BLUE = (255, 0, 0), (0, 0, 255)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded() -> AsyncIterator[Guards]:
    async with guards() as instance:
        yield instance


def _data(data: bytes) -> MediaSource:
    return MediaSource("image", PARAM, data=data)


def _pixel(rgb: bytes, width: int, x: int, y: int) -> tuple[int, ...]:
    at = 3 * (y * width + x)
    return tuple(rgb[at : at + 3])


async def test_fetching_is_on_a_loop_of_its_own_and_ends_when_nobody_waits_for_it(guarded: Guards) -> None:
    """The caller's loop, which has all streams, makes no handshakes."""
    loops, was_cancelled = list[asyncio.AbstractEventLoop](), asyncio.Event()
    here = asyncio.get_running_loop()

    async def resolve(_host: str, _port: int) -> list[str]:
        loops.append(asyncio.get_running_loop())
        here.call_soon_threadsafe(has_begun.set)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            here.call_soon_threadsafe(was_cancelled.set)
            raise
        return []

    has_begun = asyncio.Event()
    loader = MediaLoader(guarded.limits["usual"], resolve=resolve, tls=guarded.server.trusting)
    fetching = asyncio.create_task(
        loader.load_picture(MediaSource("image", PARAM, url=f"https://media.test:{guarded.server.port}/good"))
    )
    await has_begun.wait()
    fetching.cancel()
    await asyncio.wait_for(was_cancelled.wait(), 30)
    assert loops[0] is not here
    with pytest.raises(asyncio.CancelledError):
        await fetching
    await loader.close()


async def test_one_picture_by_url_data_url_file_and_bytes_has_one_hash(guarded: Guards) -> None:
    """The cached KV of a picture is thus found again, however it comes."""
    server, content = guarded.server, picture()
    server.routes["/good"] = body(content)
    server.routes["/moved"] = redirect("/good?size=full")
    sources = [
        _data(content),
        MediaSource("image", PARAM, url=f"https://media.test:{server.port}/good"),
        MediaSource("image", PARAM, url=f"https://MEDIA.test.:{server.port}/moved#part"),
        MediaSource("image", PARAM, url="data:image/png;base64," + b64encode(content).decode()),
        MediaSource("image", PARAM, url=f"file://{guarded.folder}/good.png"),
        MediaSource("image", PARAM, path=guarded.folder / "good.png"),
        _data(picture("WEBP", lossless=True)),
        _data(picture("GIF")),
        *(
            MediaSource("image", PARAM, url="data:image/png;base64," + text)
            for text in (encodebytes(content).decode(), urlsafe_b64encode(content).decode().rstrip("="))
        ),
    ]
    loader = guarded.loader("files")
    pictures = [*await loader.load_pictures(sources[:5]), *await loader.load_pictures(sources[5:])]
    assert len({one.sha256 for one in pictures}) == 1
    assert (pictures[0].height, pictures[0].width, len(pictures[0].rgb)) == (30, 40, 30 * 40 * 3)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
async def test_a_mask_is_white_where_it_is_fully_transparent(mode: str, guarded: Guards) -> None:
    """Any way of the file to say so counts; pixels that are only half transparent are kept."""
    image = Image.new("RGBA", (3, 1), (9, 9, 9, 128))
    image.putpixel((0, 0), (255, 255, 255, 0))
    file = io.BytesIO()
    image.convert(mode).save(file, "PNG")
    mask = await guarded.loader().load_picture(MediaSource("mask", "mask", data=file.getvalue()))
    assert mask.rgb == bytes([255] * 3 + [0] * 6)


@pytest.mark.parametrize("alpha", [None, 1])
async def test_a_mask_of_which_nothing_is_fully_transparent_is_refused(alpha: int | None, guarded: Guards) -> None:
    file = io.BytesIO()
    Image.new("RGB" if alpha is None else "RGBA", (3, 1), (0, 0, 0) if alpha is None else (0, 0, 0, alpha)).save(
        file, "PNG"
    )
    with pytest.raises(RequestError, match="transparen") as refusal:
        await guarded.loader().load_picture(MediaSource("mask", "mask", data=file.getvalue()))
    assert refusal.value.param == "mask"


async def test_the_shape_is_in_the_hash(guarded: Guards) -> None:
    """A picture of 10 × 40 and one of 40 × 10 may have the same bytes."""
    low, high = await guarded.loader().load_pictures([_data(png(40, 10, rows=10)), _data(png(10, 40, rows=40))])
    assert low.rgb == high.rgb
    assert low.sha256 != high.sha256


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L", "LA", "1", "CMYK", "I;16"])
async def test_every_mode_becomes_rgb(mode: str, guarded: Guards) -> None:
    """Three bytes a pixel, dark where it was dark."""
    form = "JPEG" if mode == "CMYK" else "PNG"
    result = await guarded.loader().load_picture(_data(picture(form, mode="L" if mode == "I;16" else mode)))
    if mode == "I;16":
        result = await guarded.loader().load_picture(_data(png(40, 30, rows=30, bits=16)))
        assert set(result.rgb) == {0x80}
    assert len(result.rgb) == 40 * 30 * 3
    if mode in ("RGB", "RGBA", "P"):
        assert (_pixel(result.rgb, 40, 0, 0), _pixel(result.rgb, 40, 39, 0)) == (RED, BLUE)


async def test_what_is_transparent_is_white(guarded: Guards) -> None:
    """A model sees what a person would see, not what is hidden below."""
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.new("RGBA", (5, 5), (*RED, 0)).save(file, "PNG")
    assert set((await guarded.loader().load_picture(_data(file.getvalue()))).rgb) == {255}


async def test_a_photo_is_turned_as_its_exif_says(guarded: Guards) -> None:
    """6: it was taken with the camera turned; its left half is shown above."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    result = await guarded.loader().load_picture(_data(picture("JPEG", exif=exif.tobytes(), quality=100)))
    assert (result.height, result.width) == (40, 30)
    assert _pixel(result.rgb, 30, 15, 2)[0] > 200
    assert _pixel(result.rgb, 30, 15, 37)[2] > 200


async def test_bad_exif_does_not_spoil_a_good_picture(guarded: Guards) -> None:
    """The picture is shown as it is stored."""
    result = await guarded.loader().load_picture(_data(picture("JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")))
    assert (result.height, result.width) == (30, 40)


async def test_the_first_frame_of_an_animation_is_taken(guarded: Guards) -> None:
    """The animations are WebP, PNG and GIF."""
    from io import BytesIO

    from PIL import Image

    for form in ("WEBP", "PNG", "GIF"):
        file = BytesIO()
        frames = [Image.new("RGB", (8, 8), color) for color in (RED, BLUE)]
        frames[0].save(file, form, save_all=True, append_images=frames[1:], lossless=True)
        assert _pixel((await guarded.loader().load_picture(_data(file.getvalue()))).rgb, 8, 4, 4) == RED


async def test_a_name_is_asked_once_and_the_connection_goes_where_it_was_looked(guarded: Guards) -> None:
    """The second answer would lead inside."""
    server, names = guarded.server, Names({"rebind.test": [[OUTER], [INNER]]})
    server.routes["/once"] = body(picture())
    loader = guarded.loader("usual", names)
    source = MediaSource("image", PARAM, url=f"https://rebind.test:{server.port}/once")
    assert (await loader.load_picture(source)).width == 40
    assert (names.asked, server.inner_reached) == (["rebind.test"], 0)
    with pytest.raises(RequestError, match="no public address"):  # not by a connection that was kept, either
        await loader.load_picture(source)
    await loader.close()


async def test_the_next_address_is_tried_where_nobody_answers(guarded: Guards) -> None:
    """Browsers do the same: hosts may have addresses that don't answer."""
    server = guarded.server
    server.routes["/second"] = body(picture())
    loader = guarded.loader("usual", Names({"media.test": [["::ffff:127.0.0.1", OUTER]]}))
    result = await loader.load_picture(MediaSource("image", PARAM, url=f"https://media.test:{server.port}/second"))
    assert result.width == 40
    await loader.close()


async def test_too_many_parts_are_refused_by_the_first_that_is_too_much(guarded: Guards) -> None:
    """The refusal comes before any of them is fetched."""
    sources = [MediaSource("image", f"messages.0.content.{index}", data=picture()) for index in range(9)]
    assert len(await guarded.loader().load_pictures(sources[:8])) == 8
    with pytest.raises(RequestError, match="at most 8 pictures") as refusal:
        await guarded.loader().load_pictures(sources)
    assert refusal.value.param == "messages.0.content.8"


async def test_the_part_that_fails_is_named(guarded: Guards) -> None:
    """The name is not that of the first part or of the request."""
    sources = [MediaSource("image", f"messages.0.content.{index}", data=picture()) for index in range(3)]
    sources[1] = MediaSource("image", "messages.0.content.1", data=b"GIF89a")
    with pytest.raises(RequestError) as refusal:
        await guarded.loader().load_pictures(sources)
    assert refusal.value.param == "messages.0.content.1"
    assert refusal.value.status == 400


async def test_what_waits_to_be_decoded_is_bounded(guarded: Guards) -> None:
    """A request of some hundred bytes may name files of 128 MiB, and a thousand of them may wait."""
    data = png(10, 10, rows=10)
    loader = MediaLoader(replace(guarded.limits["usual"], waiting=5 * len(data)))
    outcomes = await asyncio.gather(*(loader.load_picture(_data(data)) for _ in range(9)), return_exceptions=True)
    assert [type(one) for one in outcomes] == [Picture] * 2 + [Saturated] * 7
    assert (await loader.load_picture(_data(data))).width == 10
    await loader.close()


async def test_no_part_is_decoded_before_all_are_fetched(guarded: Guards, tmp_path: Path) -> None:
    """Seven pictures of 48 MB would wait in memory for one that is fetched slowly. As they came, they are counted."""
    server, go_on, data = guarded.server, threading.Event(), picture()
    server.routes["/slow"] = body(data)

    async def resolve(host: str, port: int) -> Sequence[str]:
        await asyncio.to_thread(go_on.wait)
        return await Names(NAMES).resolve(host, port)

    loader = MediaLoader(guarded.limits["usual"], resolve=resolve, tls=server.trusting)
    url = "data:image/png;base64," + b64encode(data).decode()
    params = {Origin("image", url): "messages.0.content.0"}
    params[Origin("image", f"https://media.test:{server.port}/slow")] = "messages.0.content.1"
    reading = asyncio.create_task(MediaReader(loader, Storage(str(tmp_path)), 2**20).read(params, Asker()))
    try:
        await until(lambda: loader._waiting._sizes, 30)
        await asyncio.sleep(0.5)
        assert not loader._decoders._pool._all
        assert sum(loader._waiting._sizes.values()) == len(b64encode(data))
    finally:
        go_on.set()
    assert {sample.param for sample in (await reading).values()} == set(params.values())
    assert not loader._waiting._sizes
    await loader.close()


async def test_a_decoder_that_died_is_replaced(guarded: Guards) -> None:
    """A crash of a codec costs one request."""
    pool = DecoderPool(guarded.limits["usual"], processes=1)
    await pool.picture("image", [picture()])
    (decoder,) = pool._pool._all
    os.kill(decoder._process.pid, signal.SIGSEGV)
    decoder._process.wait()
    with pytest.raises(Refused, match="its decoder failed on it"):
        await pool.picture("image", [picture()])
    again = await pool.picture("image", [picture()])
    assert again.width == 40
    pool.close()


async def test_closing_ends_the_decoders(guarded: Guards) -> None:
    """No process is left, not even one at work."""
    loader = guarded.loader("long", Names(NAMES))
    work = asyncio.create_task(loader.load_picture(_data(png(10, 10, chunk(b"tEXt", b"a\0b") * 4_000_000, rows=10))))
    await until(lambda: loader._decoders._pool._all, 60)
    (decoder,) = loader._decoders._pool._all
    await loader.close()
    assert decoder._process.returncode is not None
    with pytest.raises(RequestError):
        await work


async def test_a_decoder_knows_nothing_of_our_environment(guarded: Guards, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords are in there."""
    monkeypatch.setenv("XYLEM_ADMIN_KEY", "a-secret")
    loader = guarded.loader("usual", Names(NAMES))
    await loader.load_picture(_data(picture()))
    (decoder,) = loader._decoders._pool._all
    with open(f"/proc/{decoder._process.pid}/environ", "rb") as file:  # noqa: ASYNC230, PTH123 (a file of the kernel)
        assert b"a-secret" not in file.read()
    await loader.close()


async def test_a_slow_server_holds_up_no_other_picture(guarded: Guards) -> None:
    """A server that says nothing at all holds up none either."""
    server = guarded.server
    server.routes["/silent"], server.routes["/fine"] = silent(), body(picture())
    slow = [
        asyncio.create_task(guarded.loader().load_picture(MediaSource("image", PARAM, url=f"https://{where}")))
        for where in (f"media.test:{server.port}/silent", "slow.test", f"media.test:{server.silent_port}/a") * 5
    ]
    for _ in range(3):
        await guarded.loader().load_picture(MediaSource("image", PARAM, url=f"https://media.test:{server.port}/fine"))
    assert not any(task.done() for task in slow)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_a_sound_is_the_same_by_url_data_and_file(guarded: Guards) -> None:
    """Samples, of which the hash is: also the same ones in another format."""
    server, samples = guarded.server, tone(1.0)
    content = encoded(samples, "flac", "flac")
    server.routes["/sound"] = body(content)
    by_data = MediaSource("audio", PARAM, url="data:audio/flac;base64," + b64encode(content).decode())
    by_url = MediaSource("audio", PARAM, url=f"https://media.test:{server.port}/sound")
    sources = (
        by_data,
        by_url,
        MediaSource("audio", PARAM, data=content),
        MediaSource("audio", PARAM, data=wav(samples)),
    )
    sounds = [await guarded.loader().load_sound(source) for source in sources]
    assert {one.sha256 for one in sounds} == {sounds[0].sha256}
    assert (sounds[0].length, len(sounds[0].data)) == (16_000, 64_000)
    with pytest.raises(RequestError, match="no WAV, MP3") as refusal:
        await guarded.loader().load_sound(MediaSource("audio", PARAM, data=b"<html>"))
    assert refusal.value.param == PARAM


@pytest.mark.parametrize("form", ["mp4", "webm"])
async def test_a_video_becomes_frames_at_equal_distances(form: str, guarded: Guards) -> None:
    """30 frames, brighter by 8 each; 8 of them are taken."""
    loader: MediaLoader = guarded.loader()
    clip = await loader.load_video(MediaSource("video", PARAM, data=video(form=form)))
    pictures = [frame.picture for frame in clip.frames]
    greys = [_pixel(picture.rgb, picture.width, 32, 24)[0] for picture in pictures]
    assert [round(frame.at_s, 1) for frame in clip.frames] == [0.0, 0.4, 0.8, 1.2, 1.5, 1.9, 2.3, 2.7]
    assert round(clip.long_s) == 3
    steps = [after - before for before, after in pairwise(greys)]
    assert all(20 <= step <= 42 for step in steps), greys
    assert len({picture.sha256 for picture in pictures}) == 8


@pytest.mark.parametrize("form", ["mp4", "webm"])
async def test_a_video_that_is_cut_off_is_refused(form: str, guarded: Guards) -> None:
    """The video is refused even where FFmpeg would take what is left."""
    data = video(form=form)
    with pytest.raises(RequestError, match="broken or incomplete"):
        await guarded.loader().load_video(MediaSource("video", PARAM, data=data[: len(data) * 3 // 4]))


async def test_the_frames_of_a_video_have_together_what_a_picture_may_have(guarded: Guards) -> None:
    """The frames are scaled down."""
    clip = await guarded.loader().load_video(MediaSource("video", PARAM, data=video(frames=10, size=(640, 480))))
    pictures = [frame.picture for frame in clip.frames]
    assert sum(picture.height * picture.width for picture in pictures) <= guarded.limits["usual"].pixels
    assert abs(pictures[0].width / pictures[0].height - 4 / 3) < 0.02


@pytest.mark.parametrize(("made", "reason"), [
    ({"frames": 121, "fps": 1}, "longer than 120 s (XYLEM_MEDIA_VIDEO_S)"),
    ({"frames": 2, "size": (1200, 1000)}, "pixels (XYLEM_MEDIA_PIXELS)"),
])  # fmt: skip
async def test_a_video_beyond_its_bounds_is_refused(made: dict[str, int], reason: str, guarded: Guards) -> None:
    """The header is enough to refuse it."""
    with pytest.raises(RequestError) as refusal:
        await guarded.loader().load_video(MediaSource("video", PARAM, data=video(**made)))  # type: ignore[arg-type]
    assert reason in refusal.value.message


async def test_requests_that_show_the_same_picture_at_once_have_it_once(guarded: Guards, tmp_path: Path) -> None:
    """The way by which it came does not matter. With the last of them it is gone."""
    reader = MediaReader(guarded.loader(), Storage(str(tmp_path)), 2**20)
    origin = Origin("image", "data:image/png;base64," + b64encode(picture()).decode())
    (first,) = (await reader.read({origin: PARAM}, Asker())).values()
    (again,) = await reader.uploaded([_data(picture("WEBP", lossless=True))])
    assert first.shared is not None
    assert first.data is again.data
    last = ref(first.shared)
    del first
    assert last() is again.shared
    del again
    assert last() is None
