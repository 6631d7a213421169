"""What runs beside the product: benchmarks, dashboards, decisions."""
