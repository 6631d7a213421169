"""Returns the requests left in a worker's own queue when it ends."""

from typing import cast

from app.ids import QueueName
from app.keys import PRIORITY_STEPS
from app.messages.celery_message import read_task_message
from app.runner.runner import Runner


async def hand_back_queue(runner: Runner, queue: QueueName) -> int:
    """Empties the worker's own queue and gives each request back to its API replica; returns how many."""
    count = 0
    for step in PRIORITY_STEPS:
        while (raw := await runner.broker.rpop(runner.keys.queue(queue, step))) is not None:
            if (args := read_task_message(cast(bytes, raw))) is not None:
                await runner.hand_back(*args)
                count += 1
    return count
