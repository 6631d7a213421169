"""Programs beside the product: benchmarks, dashboards, decisions."""
