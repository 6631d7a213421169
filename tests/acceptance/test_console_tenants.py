"""The console's page of tenants in a real browser: it shows what they may and what they used, and makes keys."""

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI
from playwright.sync_api import Browser, expect

from tests.browser import Tab, serious_faults, tab
from tests.serving import served_by
from tests.stack import BIN, Stack, mock_pool, wait_until

expect.set_options(timeout=60_000)
ADMIN = "the-admin-key"
HEADERS = {"authorization": f"Bearer {ADMIN}"}


ENV = {"XYLEM_REQUIRE_KEYS": "true", "XYLEM_ADMIN_KEY": ADMIN, "XYLEM_USAGE_URL": "sqlite:///{path}/usage.sqlite"}
fleet = served_by({"decode-pool-a": mock_pool()}, **ENV)


@pytest.fixture(scope="module")
def served(fleet: Stack) -> Stack:
    fleet.spawn("usage", str(BIN / "xylem"), "usage", "write")
    report = f"{fleet.url}/admin/usage"
    wait_until(lambda: httpx.get(report, headers=HEADERS).status_code == 200, "the database is there", 60)
    return fleet


@pytest.fixture
def opened(browser: Browser, served: Stack) -> Iterator[Tab]:
    with tab(browser, served.url, viewport={"width": 1280, "height": 900}) as one:
        one.page.add_init_script(f"sessionStorage.setItem('xylem.admin-key', '{ADMIN}')")
        yield one


def test_a_key_that_is_made_there_serves_and_what_it_used_is_shown(opened: Tab, served: Stack) -> None:
    """The tenant has weight 3 and a budget, beside the default one: its share is three quarters."""
    settings = {"weight": 3.0, "budget": "1000000tokens/month"}
    assert httpx.put(f"{served.url}/admin/tenants/research", json=settings, headers=HEADERS).status_code == 200
    page = opened.page
    opened.go("/console/tenants")
    page.get_by_label("Name", exact=True).fill("alice")
    page.get_by_label("Tenant", exact=True).select_option("research")
    page.get_by_role("button", name="Make the key").click()
    token = page.locator("pre").inner_text()
    card = page.locator(".card", has=page.get_by_role("heading", name="research"))
    expect(card).to_contain_text("75 % of a full fleet")
    client = OpenAI(base_url=f"{served.url}/v1", api_key=token, max_retries=8)
    for _ in range(2):
        client.completions.create(model="mock", prompt="the sea was grey", max_tokens=20)
    report = f"{served.url}/admin/usage"
    wait_until(lambda: httpx.get(report, headers=HEADERS).json()["data"], "usage is in the database")
    page.reload()
    expect(card).to_contain_text("100 % of the engine seconds")
    expect(card).to_contain_text("56 of 1M tokens this month")
    expect(page.get_by_role("row", name="research")).to_contain_text("2")
    expect(page.locator(".column span")).to_have_count(1)
    assert serious_faults(page) == []


def test_a_revoked_key_is_gone_from_the_page_and_refused(opened: Tab, served: Stack) -> None:
    api_key = httpx.post(f"{served.url}/admin/keys", json={"name": "bob"}, headers=HEADERS).json()
    page = opened.page
    page.on("dialog", lambda dialog: dialog.accept())
    opened.go("/console/tenants")
    page.locator(".card", has=page.get_by_role("heading", name="default")).get_by_text("Keys").click()
    page.get_by_role("button", name="Revoke bob").click()
    expect(page.get_by_role("button", name="Revoke bob")).to_have_count(0)
    bearer = {"authorization": f"Bearer {api_key['key']}"}
    wait_until(lambda: httpx.get(f"{served.url}/v1/models", headers=bearer).status_code == 401, "it is refused")


def test_on_a_phone_nothing_is_cut_off(browser: Browser, served: Stack) -> None:
    with tab(browser, served.url, viewport={"width": 360, "height": 740}) as one:
        one.page.add_init_script(f"sessionStorage.setItem('xylem.admin-key', '{ADMIN}')")
        one.go("/console/tenants")
        expect(one.page.locator(".card").first).to_be_visible()
        assert one.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert serious_faults(one.page) == []
