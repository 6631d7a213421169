"""Pictures, videos and sound, in requests and painted."""

from ops.observability.panels import Dashboard, Panel, Query, by_pool, quantiles, rate, sum_by, worker_rate

_PICTURES = (
    ("encoded", "encoded for others"),
    ("found", "for others, encoded before"),
    ("fetched", "fetched from others"),
    ("lost", "not fetched as they should be"),
    ("missing", "that no worker had encoded"),
)

MEDIA = Dashboard(
    "media",
    "Xylem: media",
    ("pool",),
    (
        Panel(
            "Fetching and decoding",
            "s",
            quantiles("xylem_media_seconds", "kind", of=(0.5, 0.95)),
            "Of a picture, video or sound of a request.",
        ),
        Panel("Media of requests", "ops", (Query(sum_by("kind", rate("xylem_media_seconds_count")), "{{kind}}"),)),
        Panel(
            "Pictures encoded apart",
            "ops",
            tuple(
                Query(by_pool(worker_rate(f"xylem_worker_pictures_{which}_total")), f"{{{{pool}}}} {name}")
                for which, name in _PICTURES
            ),
        ),
        Panel("Steps of painting", "ops", (Query(by_pool(worker_rate("xylem_worker_paint_steps_total")), "{{pool}}"),)),
    ),
)
