"""Fixtures of several acceptance tests."""

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI
from playwright.sync_api import Browser, sync_playwright

from tests.browser import chromium
from tests.serving import client_of
from tests.stack import Stack


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium_browser = chromium(playwright)
        yield chromium_browser
        chromium_browser.close()


@pytest.fixture(scope="module")
def client(served: Stack) -> Iterator[OpenAI]:
    with client_of(served.url) as c:
        yield c


@pytest.fixture(scope="module")
def http(served: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=60) as c:
        yield c
