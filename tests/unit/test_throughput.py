"""Measured pace, and the requests whose work counts for it."""

import pytest
from msgspec.structs import replace

from app.ids import RequestId
from app.messages.job import Job
from app.runner.throughput import Throughput
from tests.jobs import job

JOB = job([1] * 1000)


def served(paces: Throughput, job: Job) -> None:
    with paces.has(job):
        paces.first_token(job, 0, len(job.prompt))


def test_those_that_give_way_are_no_load_to_others_but_tell_how_fast_the_engine_is() -> None:
    paces = Throughput(1, 8, lambda job: job.aside)
    unknown = paces.read().prefill_tokens_per_s
    served(paces, replace(JOB, aside=True))
    assert paces.online.read(1e9).prefill_tokens_per_s == 0
    assert paces.read().prefill_tokens_per_s != unknown


def test_what_the_others_measured_goes_before() -> None:
    paces = Throughput(1, 8, lambda job: job.aside)
    served(paces, JOB)
    speed = paces.read().prefill_tokens_per_s
    served(paces, replace(JOB, request=RequestId("other"), aside=True))
    assert paces.read().prefill_tokens_per_s == pytest.approx(speed, rel=1e-9)
