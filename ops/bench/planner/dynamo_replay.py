"""Run by Dynamo's Python, see `dynamo.py`: one replay; prints its figures as a line of JSON."""

import importlib.abc
import importlib.machinery
import json
import logging
import sys
import types


class _Empty(types.ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, _path=None, _target=None):
        ours = name.partition(".")[0] in ("aisimulate", "aisimulate_core")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec):
        return _Empty(spec.name)

    def exec_module(self, _module):
        pass


sys.meta_path.append(_Finder())
logging.disable(logging.WARNING)

from dynamo.replay import run_trace_replay  # noqa: E402 (the finder comes first)

asked = json.loads(sys.argv[1])
planner = {"mode": "agg", "ttft_ms": asked["ttft_ms"], "itl_ms": asked["itl_ms"], **asked["mode"]}
report = run_trace_replay(
    asked["trace"],
    extra_engine_args={"engine": {"num_gpu_blocks": asked["blocks"]}, "startup_time": asked["start_s"]},
    router_mode="kv_router",
    trace_block_size=512,
    num_workers=asked["workers"],
    capture_per_request=True,
    capture_planner_details=False,
    planner_config=planner,
)
rows, summary = report.per_request, report.summary
met = sum(row["ttft_ms"] <= asked["ttft_ms"] and (row["itl_ms"] or 0) <= asked["itl_ms"] for row in rows)
workers = summary["decode_worker_seconds"] / summary["duration_ms"] * 1000
print(json.dumps({"attained": met / len(rows), "workers": workers}), flush=True)
