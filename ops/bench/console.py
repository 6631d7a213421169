"""`make bench NAME=console`: how soon the console can be used in Chromium, and what axe finds in its pages."""

import tempfile
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from ops.bench.parts import Say, single
from ops.bench.size import Size
from tests.browser import READY, chromium, serious_faults, tab
from tests.stack import mock_pool, stack, valkey

FIGURES = ("console_ready_ms", "axe_serious")
_TIMES = 9  # each in a context of its own, without anything cached; the browser itself is warm
_PAGES = ("/console", "/console/fleet", "/console/batches", "/console/tenants", "/console/usage")
_MARK = f"performance.getEntriesByName('{READY}')[0]"


def ready_ms(browser: Browser, url: str, times: int = _TIMES) -> float:
    """Milliseconds from the navigation's start until a model can be asked, painted: a median."""
    times_ms = []
    for _ in range(times + 1):
        with tab(browser, url) as console_tab:
            console_tab.go()
            console_tab.page.wait_for_function(f"() => {_MARK} && performance.getEntriesByType('paint').length")
            paint = "performance.getEntriesByType('paint')[0].startTime"
            times_ms.append(float(console_tab.page.evaluate(f"Math.max({_MARK}.startTime, {paint})")))
    return median(times_ms[1:])


def axe_serious(browser: Browser, url: str) -> int:
    """Serious and critical faults of all pages together, light and dark, on a desktop's screen and a phone's."""
    faults = 0
    for path, scheme, width in product(_PAGES, ("light", "dark"), (1280, 360)):
        with tab(browser, url, color_scheme=scheme, viewport={"width": width, "height": 740}) as console_tab:
            console_tab.go(path)
            console_tab.page.wait_for_selector(".card, .hint, option", state="attached")
            faults += len(serious_faults(console_tab.page))
    return faults


def measured(_directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Measures the console of a fleet of its own."""
    say("the console in Chromium")
    with (
        tempfile.TemporaryDirectory(prefix="xylem-console-") as name,
        valkey(Path(name)) as redis,
        stack(redis, Path(name), {"decode-pool-a": mock_pool()}) as s,
        sync_playwright() as playwright,
    ):
        s.api()
        s.worker()
        s.wait_ready()
        browser = chromium(playwright)
        figures = {
            "console_ready_ms": round(ready_ms(browser, s.url, size.of(_TIMES, _TIMES, 1)), 1),
            "axe_serious": axe_serious(browser, s.url),
        }
        browser.close()
    return figures


if __name__ == "__main__":
    single("console", "Measure the console in Chromium.", FIGURES, measured)
