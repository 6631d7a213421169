"""Plans each step: continuous batching with chunked prefill, as vLLM's scheduler does it.

Running choices come first, in the order of priority and arrival; then waiting ones are admitted while
there are seats, token budget and blocks. A running choice that finds no free block preempts the last one,
which waits again, loses its blocks and is recomputed, except for blocks that are still cached.
A choice whose prompt was computed elsewhere, or is in tiers, has its seat and its blocks while they are fetched, but
takes no part in steps. One that needs the same blocks from tiers waits meanwhile, and is overtaken.
"""

from bisect import insort
from typing import NamedTuple

from app.engines.mock.args import MockArgs
from app.engines.mock.blocks import BlockManager
from app.engines.mock.choice import MockChoice


class StepPlan(NamedTuple):
    """One step."""

    sampled: list[MockChoice]  # each gets its next token
    duration: float  # seconds
    fetching: list[MockChoice]  # newly admitted, with blocks to be fetched from another engine or from tiers
    idle: bool  # nothing to compute until something changes
    running: int = 0  # choices
    prefill: int = 0  # prompt tokens it computes


def _rank(choice: MockChoice) -> tuple[int, int, int]:
    return choice.rank


class Scheduler:
    """Pure bookkeeping: no clock, no I/O."""

    def __init__(self, args: MockArgs, blocks: BlockManager, max_running: int) -> None:
        self.blocks = blocks
        self.running: list[MockChoice] = []  # both sorted by rank
        self.waiting: list[MockChoice] = []
        self.fetching: list[MockChoice] = []  # their blocks are being written to
        self.fetched: list[MockChoice] = []  # they run from the next step on
        self.prefill_tokens = 0  # of prompts, computed so far
        self.pulled_tokens = 0  # of prompts, fetched so far
        self._loading: set[int] = set()  # hashes of blocks on their way from tiers
        self._max_running = max_running
        self._budget = args.max_batched_tokens
        self._step_s = args.step_ms / 1e3 / args.speedup
        self._sequence_s = args.step_ms_per_sequence / 1e3 / args.speedup
        self._token_s = 1 / args.prefill_tokens_per_s / args.speedup

    def add(self, choice: MockChoice) -> None:
        insort(self.waiting, choice, key=_rank)

    @property
    def seated(self) -> int:
        """Choices that have a seat and blocks."""
        return len(self.running) + len(self.fetching) + len(self.fetched)

    def remove(self, choice: MockChoice) -> None:
        """Forget a choice, finished or not. Its blocks are free when this returns, unless they are being fetched."""
        if choice not in self.fetching:
            self._unlist(choice)
            self.blocks.release(choice.table)

    def park(self, choice: MockChoice) -> None:
        """Take a choice out of the steps; it keeps its blocks."""
        self._unlist(choice)

    def land(self, choice: MockChoice, pulled_tokens: int) -> None:
        """The prompt's KV has been fetched: `pulled_tokens` of it came from another engine."""
        self._arrived(choice, choice.prompt_len)
        self.pulled_tokens += pulled_tokens
        choice.source = None

    def loaded(self, choice: MockChoice) -> None:
        """Counts as computed what tiers had of the choice: it is loaded now."""
        blocks = self._end_load(choice)
        self._arrived(choice, choice.computed + blocks * self.blocks.block_size)

    def fail(self, choice: MockChoice) -> None:
        """The fetch failed, and nothing writes into its blocks any more: they are free when this returns."""
        self.fetching.remove(choice)
        self._end_load(choice)
        self.blocks.release(choice.table)

    def restart(self) -> list[MockChoice]:
        """Take all blocks from all choices, which wait again; none is being fetched. Returns the choices."""
        for choice in self.running + self.fetched:
            self._unlist(choice)
            self.add(choice)
        for choice in self.waiting:
            self.blocks.release(choice.table)
            choice.computed = 0
        return list(self.waiting)

    def plan(self) -> StepPlan:
        """Schedule one step, and count its tokens as computed."""
        choices: list[MockChoice] = []
        fetching: list[MockChoice] = []
        seats = len(self.running)
        budget, prefill = self._run(choices)
        if len(self.running) == seats:  # none was preempted: there may be room
            prefill += self._admit(choices, fetching, budget)
        duration = self._step_s + len(self.running) * self._sequence_s + prefill * self._token_s
        idle = not seats and not self.running
        return StepPlan(choices, duration, fetching, idle=idle, running=len(self.running), prefill=prefill)

    def _end_load(self, choice: MockChoice) -> int:
        """Returns how many blocks it was."""
        load, choice.load = choice.load, None
        self._loading.difference_update(load.blocks if load else ())
        return len(load.blocks) if load else 0

    def _arrived(self, choice: MockChoice, tokens: int) -> None:
        """The KV of its first `tokens` tokens is there."""
        self.fetching.remove(choice)
        # The last token is always computed here: its logits are needed.
        choice.computed = max(choice.computed, min(tokens, len(choice.tokens) - 1))
        self.blocks.commit(choice.table, choice.tokens, tokens)
        insort(self.fetched, choice, key=_rank)

    def _unlist(self, choice: MockChoice) -> None:
        for queue in (self.running, self.fetched, self.waiting):
            if choice in queue:
                queue.remove(choice)
                return

    def _run(self, samples: list[MockChoice]) -> tuple[int, int]:
        """Advance running choices; returns the budget left and the prefill tokens spent."""
        budget, prefill, i = self._budget, 0, 0
        while i < len(self.running) and budget:
            choice = self.running[i]
            remaining_tokens = len(choice.tokens) - choice.computed
            take = min(remaining_tokens, budget)
            if not self._make_room(choice, choice.computed + take):
                break  # it was the last one, and has been preempted
            i += 1
            budget -= take
            if choice.computed < choice.prompt_len or take > 1:
                prefill += take
            self._compute(choice, take, samples)
        return budget, prefill

    def _admit(self, samples: list[MockChoice], fetching: list[MockChoice], budget: int) -> int:
        """Admit choices, first those whose prompt has been fetched; returns the prefill tokens spent."""
        prefill = 0
        while self.fetched and budget:
            step_tokens = self._enter(self.fetched.pop(0), budget, samples)
            budget, prefill = budget - step_tokens, prefill + step_tokens
        first = 0  # of the waiting ones
        while first < len(self.waiting) and budget and self.seated < self._max_running:
            choice = self.waiting[first]
            if self._loading and self._is_loading(choice):
                first += 1
                continue
            cached_tokens = self.blocks.admit(choice.table, choice.tokens, reuse=choice.reuse)
            if cached_tokens is None:
                break  # nobody overtakes the first in line
            del self.waiting[first]
            choice.computed = cached_tokens
            if self.blocks.tiers is not None:
                cached_tokens += self._load(choice)
            if choice.stream.cached_tokens is None:
                choice.stream.cached_tokens = min(cached_tokens, choice.prompt_len)
            if choice.source is not None or choice.load is not None:
                self.fetching.append(choice)
                fetching.append(choice)
                continue
            step_tokens = self._enter(choice, budget, samples)
            budget, prefill = budget - step_tokens, prefill + step_tokens
        return prefill

    def _is_loading(self, choice: MockChoice) -> bool:
        """Whether what it needs first is on its way for another choice."""
        if choice.source is not None or not choice.reuse:
            return False
        return self.blocks.first_missing(choice.table, choice.tokens) in self._loading

    def _load(self, choice: MockChoice) -> int:
        """Let what tiers have of an admitted choice be loaded; returns the tokens."""
        if not choice.reuse or choice.source is not None:
            return 0
        load = choice.load = self.blocks.behind(choice.table, choice.tokens, choice.request.tiers)
        if load is None:
            return 0
        self._loading.update(load.blocks)
        return len(load.blocks) * self.blocks.block_size

    def _enter(self, choice: MockChoice, budget: int, samples: list[MockChoice]) -> int:
        """Run it from this step on; returns the tokens that it computes."""
        insort(self.running, choice, key=_rank)
        take = min(len(choice.tokens) - choice.computed, budget)
        self._compute(choice, take, samples)
        return take

    def _compute(self, choice: MockChoice, take: int, samples: list[MockChoice]) -> None:
        if choice.computed < choice.prompt_len:
            self.prefill_tokens += min(take, choice.prompt_len - choice.computed)
        choice.computed += take
        if choice.computed // self.blocks.block_size > choice.table.committed:
            self.blocks.commit(choice.table, choice.tokens, choice.computed)
        if choice.computed == len(choice.tokens):
            samples.append(choice)

    def _make_room(self, choice: MockChoice, length: int) -> bool:
        """Get blocks for `length` tokens, preempting the last in rank if needed; False if that was `choice` itself."""
        if length <= len(choice.table.blocks) * self.blocks.block_size:
            return True
        while not self.blocks.grow(choice.table, length):
            last = self.running.pop()
            self.blocks.release(last.table)
            last.computed = 0
            self.add(last)
            if last is choice:
                return False
        return True
