"""Pictures, videos and sound, in requests and painted."""

from ops.observability.panels import Dashboard, by_pool, panel, quantiles, rate, sum_by, worker_rate

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
        panel(
            "Fetching and decoding",
            "s",
            quantiles("xylem_media_seconds", "kind", of=(0.5, 0.95)),
            "Of a picture, video or sound of a request.",
        ),
        panel("Media of requests", "ops", {"{{kind}}": sum_by("kind", rate("xylem_media_seconds_count"))}),
        panel(
            "Pictures encoded apart",
            "ops",
            {
                f"{{{{pool}}}} {name}": by_pool(worker_rate(f"xylem_worker_pictures_{which}_total"))
                for which, name in _PICTURES
            },
        ),
        panel("Steps of painting", "ops", {"{{pool}}": by_pool(worker_rate("xylem_worker_paint_steps_total"))}),
    ),
)
