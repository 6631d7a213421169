"""A worker's answers to API replicas that ask what media become."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from app.messages.commands import ExpandMedia
from app.messages.media import MediaKind, MediaSign
from workers.engine.media_questions import MediaQuestions

KINDS: tuple[MediaKind, ...] = ("image", "video")
REPLICAS, EACH = 12, 4  # questions that one replica asks at once


class _Engine:
    def __init__(self) -> None:
        self.at_once = self.most = 0

    async def expansion(self, _kind: MediaKind, shape: Sequence[int], _number: int, _of: int) -> list[int]:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return [7] * shape[0]


def _asked_of(engine: _Engine) -> MediaQuestions:
    runner: Any = SimpleNamespace(
        worker="w",
        engine=engine,
        settings=SimpleNamespace(media_pixels=1000, media_frames=8, media_video_s=10.0),
        info=SimpleNamespace(signs=[MediaSign(kind, "d", f"<{kind}>", (7,)) for kind in KINDS]),
    )
    return MediaQuestions(runner)


async def test_shapes_that_take_much_memory_are_not_tried() -> None:
    engine = _Engine()
    bad: dict[MediaKind, Sequence[tuple[int, ...]]] = {
        "image": ((101, 1), (1, 101), (40, 40), (0, 1), (1, 1, 1)),
        "video": ((9, 1, 1, 1), (8, 20, 20, 1), (1, 101, 1, 1), (1, 1, 1, 101), (1, 1, 1, 0), (8, 1, 1)),
    }
    for kind, shape in ((kind, shape) for kind, shapes in bad.items() for shape in shapes):
        assert not (await _asked_of(engine).answered(ExpandMedia("1", kind, shape))).done
    assert engine.most == 0
    for kind, shape in (("image", (100, 1)), ("video", (8, 10, 10, 100))):
        assert (await _asked_of(engine).answered(ExpandMedia("1", kind, shape))).done


async def test_what_many_replicas_ask_at_once_is_answered_one_after_the_other() -> None:
    engine = _Engine()
    questions = _asked_of(engine)
    requests = [ExpandMedia(str(n), "image", (n, 1)) for n in range(1, 1 + REPLICAS * EACH)]
    replies = await asyncio.gather(*map(questions.answered, requests))
    assert [reply.expansion for reply in replies] == [[7] * one.shape[0] for one in requests]
    assert engine.most == 1
