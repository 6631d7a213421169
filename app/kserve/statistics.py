"""Counts of a model's requests in this process, as the protocol's statistics extension has it."""

from prometheus_client.metrics import MetricWrapperBase

from app.errors import OK
from app.kserve.answer_types import DurationStatistic, ModelStatistics
from app.kserve.requests import VERSION
from app.telemetry import DURATION, FAILED, LAST_ENDED, REQUESTS, STAGE

_NONE: DurationStatistic = {"count": 0, "ns": 0}


def statistics(name: str, label: str) -> ModelStatistics:
    """`name`: the model's; `label`: its name in the metrics."""
    outcomes = {
        sample.labels["outcome"]: int(sample.value)
        for metric in REQUESTS.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["model"] == label
    }
    ok_count, failed_s = outcomes.pop(OK, 0), _total(FAILED, "_total", model=label)
    took_s = _total(DURATION, "_sum", model=label) - failed_s
    stages = [_stage(label, stage) for stage in ("prefill", "decode")]
    return {
        "name": name,
        "version": VERSION,
        "last_inference": int(LAST_ENDED.get(label, 0) * 1000),
        "inference_count": ok_count,
        "execution_count": ok_count,
        "inference_stats": {
            "success": _duration(ok_count, took_s),
            "fail": _duration(sum(outcomes.values()), failed_s),
            "queue": _stage(label, "queue"),
            "compute_input": _NONE,
            "compute_infer": {
                "count": max(one["count"] for one in stages),
                "ns": sum(one["ns"] for one in stages),
            },
            "compute_output": _NONE,
            "cache_hit": _NONE,
            "cache_miss": _NONE,
        },
        "batch_stats": [],
    }


def _stage(label: str, stage: str) -> DurationStatistic:
    labels = {"model": label, "stage": stage}
    return _duration(int(_total(STAGE, "_count", **labels)), _total(STAGE, "_sum", **labels))


def _duration(count: int, seconds: float) -> DurationStatistic:
    return {"count": count, "ns": max(0, round(seconds * 1e9))}


def _total(metric: MetricWrapperBase, suffix: str, **labels: str) -> float:
    """The value of a metric's sample with these labels; 0: nothing was counted."""
    return next(
        (
            sample.value
            for family in metric.collect()
            for sample in family.samples
            if sample.name.endswith(suffix) and sample.labels == labels
        ),
        0.0,
    )
