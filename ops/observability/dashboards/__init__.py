"""The dashboards: what each panel shows. `ops/observability/grafana.py` makes files of them."""

from ops.observability.dashboards.batches import BATCHES
from ops.observability.dashboards.disaggregation import DISAGGREGATION
from ops.observability.dashboards.fleet import FLEET
from ops.observability.dashboards.media import MEDIA
from ops.observability.dashboards.requests import REQUESTS
from ops.observability.dashboards.routing import ROUTING
from ops.observability.dashboards.tenants import TENANTS

DASHBOARDS = (FLEET, REQUESTS, ROUTING, BATCHES, DISAGGREGATION, MEDIA, TENANTS)
