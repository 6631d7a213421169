"""Fixtures of several acceptance tests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium_browser = chromium(playwright)
        yield chromium_browser
        chromium_browser.close()
