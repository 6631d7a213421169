"""The base of logits processors that run inside vLLM's worker, and change the rows of some requests only."""

from typing import Generic, TypeVar

from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

Row = TypeVar("Row")


class RowProcessor(LogitsProcessor, Generic[Row]):  # type: ignore[misc]  # untyped for us: mypy skips vLLM
    def __init__(self, *_: object) -> None:  # vLLM's configuration and the device, which the logits have
        self.rows: dict[int, Row] = {}  # by place in the batch

    def is_argmax_invariant(self) -> bool:
        """False: vLLM would skip it for greedy sampling."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self.rows, batch_update, self.row)

    @staticmethod
    def row(params: SamplingParams, prompt: list[int] | None, out: list[int]) -> Row | None:
        """The row that is kept of a new request; None: it isn't changed.

        `out`: vLLM's own list of its tokens, which grows.
        """
        raise NotImplementedError
