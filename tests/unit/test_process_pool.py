import gc
import warnings

import pytest

from app.bounded.pool import ProcessPool
from app.errors import NoProcess


async def test_a_process_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ProcessPool("app.own_template_process", memory=2**30, processes=1)
    monkeypatch.setattr(pool, "_command", ["/nowhere/python"])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(NoProcess):
            await pool.run(b"", cpu_s=1)
        pool.close()
        gc.collect()
    assert told == []
