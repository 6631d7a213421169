"""`make bench NAME=models`."""

from ops.bench.models import report
from ops.bench.models.called import readback, templates
from ops.bench.models.costs import blocks, cpu, events, placing
from ops.bench.models.hybrid import hybrid
from ops.bench.models.indexed import index
from ops.bench.models.pictures import pictures
from ops.bench.models.retention import retention
from ops.bench.parts import bench

PARTS = {
    "index": index,
    "hybrid": hybrid,
    "retention": retention,
    "templates": templates,
    "readback": readback,
    "pictures": pictures,
    "blocks": blocks,
    "events": events,
    "placing": placing,
    "cpu": cpu,
}
_USUAL = [part for part in PARTS if part != "retention"]  # which is the guide's

if __name__ == "__main__":
    bench(
        "models",
        "Measure what is known of today's models: cached tokens, templates, calls, pictures, and what it costs others.",
        report,
        PARTS,
        _USUAL,
    )
