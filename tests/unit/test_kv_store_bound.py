"""Losses of a bounded store: the blocks used longest ago, and never one that others, which it keeps, need."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.kv_store.block_store import StoredBlock
from app.kv_store.bound import superfluous
from app.kv_store.uses import Uses, used

SIZE, BYTES, MOST, PERIOD_S = 32, 100, 1000, 600.0


class StoreMachine(RuleBasedStateMachine):
    """Workers that use prompts with common beginnings, and a cleaner. A block's path is its prompt, up to there."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1e9
        self.workers = [Uses[str](PERIOD_S) for _ in range(2)]
        self.store: dict[str, float] = {}  # path → the time that it has noted
        self.last: dict[str, float] = {}  # when each was used last

    @rule(
        prompt=st.text("abc", min_size=1, max_size=8),
        worker=st.integers(0, 1),
        after_s=st.sampled_from([0.0, 1.0, 400.0, 5000.0]),
    )
    def use(self, prompt: str, worker: int, after_s: float) -> None:
        """Uses a prompt at a worker with its first blocks, say: all are used, and those the store lacks are stored."""
        self.now += after_s
        ends = {prompt[:i]: i * SIZE for i in range(1, len(prompt) + 1)}
        for path, when in self.workers[worker].due(ends.items(), self.now):
            if path in self.store:
                self.store[path] = when
        for path, end in ends.items():
            self.last[path] = self.now
            self.store.setdefault(path, used(self.now, PERIOD_S, end))

    @rule()
    def clean(self) -> None:
        removals = superfluous([StoredBlock(path, BYTES, when) for path, when in self.store.items()], MOST, self.now)
        assert bool(removals) == (len(self.store) * BYTES > MOST)
        for one in removals:
            del self.store[one.path]
        assert len(self.store) * BYTES <= MOST
        for one in removals:
            assert self.last[one.path] < min(self.last[path] for path in self.store) + PERIOD_S

    @invariant()
    def no_block_is_there_without_those_before_it(self) -> None:
        assert {path[:-1] for path in self.store} <= {"", *self.store}


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=100, stateful_step_count=40)
