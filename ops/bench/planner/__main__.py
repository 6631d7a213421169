"""`make bench NAME=planner`."""

from ops.bench.parts import bench
from ops.bench.planner import report
from ops.bench.planner.checks import groups, helm_examples, panels, soak, traced
from ops.bench.planner.dynamo import dynamo
from ops.bench.planner.live import live
from ops.bench.planner.simulation import others, simulation

if __name__ == "__main__":
    bench(
        "planner",
        "Measure the planner beside the best plan, fixed fleets and Dynamo's planner; and what operating costs.",
        report,
        {
            "simulation": simulation,
            "dynamo": dynamo,
            "live": live,
            "others": others,
            "tracing": traced,
            "panels": panels,
            "groups": groups,
            "helm": helm_examples,
            "soak": soak,
        },
        usual=["simulation", "dynamo", "live", "tracing", "panels", "groups", "helm", "soak"],
    )
