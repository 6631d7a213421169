"""What a worker answers when API replicas ask what media become."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from app.messages import ExpandMedia, MediaKind, MediaSign
from workers.engine.media_questions import MediaQuestions

REPLICAS, EACH = 12, 4  # questions that one replica asks at once


class _Engine:
    def __init__(self) -> None:
        self.at_once = self.most = 0

    async def expansion(self, _kind: MediaKind, shape: Sequence[int], _number: int) -> list[int]:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return [7] * shape[0]


async def test_what_many_replicas_ask_at_once_is_answered_one_after_the_other() -> None:
    engine = _Engine()
    runner: Any = SimpleNamespace(
        worker="w",
        engine=engine,
        settings=SimpleNamespace(media_pixels=100),
        info=SimpleNamespace(signs=[MediaSign("image", "d", "<picture>", (7,))]),
    )
    questions = MediaQuestions(runner)
    asked = [ExpandMedia(str(n), "image", (n, 1)) for n in range(1, 1 + REPLICAS * EACH)]
    replies = await asyncio.gather(*map(questions.answered, asked))
    assert [reply.expansion for reply in replies] == [[7] * one.shape[0] for one in asked]
    assert engine.most == 1
