"""Chromium, as the distribution has it, on pages of our own."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, Playwright

_ARGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
READY = "console-ready"  # the console's mark of the moment in which a model can be asked
_IMPACTS = ("serious", "critical")


def chromium(playwright: Playwright) -> Browser:
    """Raises: AssertionError when Chromium isn't installed."""
    path = shutil.which("chromium")
    assert path, "chromium is not installed: `make test` installs it where it may, else use your package manager"
    return playwright.chromium.launch(executable_path=path, args=_ARGS)


@dataclass
class Tab:
    """A page of a context of its own, and what should not have happened on it."""

    page: Page
    url: str
    wrong: list[str] = field(default_factory=list)

    def go(self, path: str = "/console") -> None:
        self.page.goto(f"{self.url}{path}")


@contextmanager
def tab(browser: Browser, url: str, **options: Any) -> Iterator[Tab]:
    """Raises: AssertionError in the end, for an error in the console or a request to elsewhere."""
    context: BrowserContext = browser.new_context(**options)
    context.set_default_timeout(60_000)
    new_tab = Tab(context.new_page(), url)
    new_tab.page.on("console", lambda said: said.type in ("error", "warning") and new_tab.wrong.append(said.text))
    new_tab.page.on("pageerror", lambda error: new_tab.wrong.append(str(error)))
    new_tab.page.on(
        "request",
        lambda asked: asked.url.startswith((url, "data:", "blob:")) or new_tab.wrong.append(f"asked {asked.url}"),
    )
    try:
        yield new_tab
    finally:
        context.close()
    assert new_tab.wrong == []


def play(opened: Tab, model: str = "mock", **fields: str) -> None:
    """Opens Play with a model, and fills in its parameters, by their labels."""
    opened.go()
    opened.page.get_by_label("Model").select_option(model)
    for label, value in fields.items():
        opened.page.get_by_label(label.replace("_", " ")).fill(value)


def ask(opened: Tab, question: str) -> None:
    opened.page.get_by_label("Message", exact=True).fill(question)
    opened.page.keyboard.press("Enter")


def serious_faults(page: Page) -> list[str]:
    """Faults that axe finds and that keep people from using the page."""
    violations = Axe().run(page).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html']}" for one in violations if one["impact"] in _IMPACTS]
