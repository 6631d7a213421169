"""The console's page of tenants in a real browser: it shows what they may and what they used, and makes keys."""

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI
from playwright.sync_api import Browser, Locator, Page, expect

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


def card_of(page: Page, tenant: str) -> Locator:
    return page.locator(".card", has=page.get_by_role("heading", name=tenant, exact=True))


def made_key(page: Page, name: str, tenant: str, **fields: str) -> str:
    """A key that the form made."""
    card_of(page, tenant).get_by_role("button", name="New key").click()
    dialog = page.get_by_role("dialog", name="New key")
    expect(dialog.get_by_label("Tenant")).to_have_value(tenant)
    for label, value in {"Name": name, **fields}.items():
        dialog.get_by_label(label.replace("_", " ")).fill(value)
    dialog.get_by_role("button", name="Make the key").click()
    token = dialog.locator("pre").first.inner_text()
    dialog.get_by_role("button", name="Copy key").click()
    assert page.evaluate("navigator.clipboard.readText()") == token
    assert serious_faults(page) == []
    dialog.get_by_role("button", name="Done").click()
    return str(token)


def test_a_tenant_and_its_keys_are_made_changed_and_deleted(opened: Tab, served: Stack) -> None:
    opened.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = opened.page
    page.on("dialog", lambda dialog: dialog.accept())
    opened.go("/console/tenants")
    page.get_by_role("button", name="New tenant").click()
    dialog = page.get_by_role("dialog", name="New tenant")
    assert serious_faults(page) == []
    for label, value in {"Name": "blue", "Budget": "nonsense", "Weight": "2"}.items():
        dialog.get_by_label(label).fill(value)
    dialog.get_by_role("button", name="Make the tenant").click()
    expect(dialog.get_by_role("alert")).to_contain_text("budget")
    dialog.get_by_label("Budget").fill("50money/day")
    dialog.get_by_role("button", name="Make the tenant").click()
    card = card_of(page, "blue")
    expect(card).to_contain_text("0.00 of 50.00 today: 50.00 left")
    card.get_by_role("button", name="Change", exact=True).click()
    page.get_by_label("Requests a minute").fill("600")
    page.get_by_role("button", name="Save").click()
    expect(card).to_contain_text("requests per min 600")

    made_key(page, "ci", "blue", Models="mock", Expires="2099-01-31T12:00", Requests_a_minute="60")
    key = httpx.get(f"{served.url}/admin/keys/ci", headers=HEADERS).json()
    assert (key["models"], key["expires"], key["requests_per_min"]) == (["mock"], "2099-01-31T12:00:00Z", 60)
    card.get_by_text("1 key", exact=True).click()
    card.get_by_role("button", name="Change ci").click()
    page.get_by_label("Models").fill("")
    page.get_by_role("button", name="Save").click()
    expect(card.locator(".keys")).not_to_contain_text("models")
    key = httpx.get(f"{served.url}/admin/keys/ci", headers=HEADERS).json()
    assert ("models" in key, key["requests_per_min"], key["tenant"]) == (False, 60, "blue")
    card.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("alert")).to_contain_text("has 1 keys")
    card.get_by_role("button", name="Revoke ci").click()
    expect(card.get_by_text("0 keys")).to_be_visible()
    card.get_by_role("button", name="Delete").click()
    expect(card).to_have_count(0)
    # The browser itself reports what was refused.
    opened.wrong[:] = [fault for fault in opened.wrong if "400" not in fault]


def test_a_key_that_is_made_there_serves_and_what_it_used_is_shown(
    opened: Tab, served: Stack, browser: Browser
) -> None:
    """The tenant has weight 3 beside the default one; a link gives its team what they used and have left, in money."""
    settings = {"weight": 3.0, "budget": "0.04money/month"}
    assert httpx.put(f"{served.url}/admin/tenants/research", json=settings, headers=HEADERS).status_code == 200
    prices = {"prices": {"mock": {"input": 1000.0, "output": 1000.0}}}
    assert httpx.patch(f"{served.url}/admin/prices", json=prices, headers=HEADERS).status_code == 200
    opened.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = opened.page
    opened.go("/console/tenants")
    token = made_key(page, "alice", "research")
    card = card_of(page, "research")
    expect(card).to_contain_text("75 % of a full fleet")
    client = OpenAI(base_url=f"{served.url}/v1", api_key=token, max_retries=8)
    for _ in range(2):
        client.completions.create(model="mock", prompt="the sea was grey", max_tokens=20)
    report = f"{served.url}/admin/usage"
    wait_until(lambda: httpx.get(report, headers=HEADERS).json()["data"], "usage is in the database")
    page.reload()
    expect(card).to_contain_text("100 % of the engine time")
    expect(card).to_contain_text("over budget by 0.0160")
    expect(card.locator(".bar .bad")).to_be_visible()
    expect(page.get_by_role("row", name="research")).to_contain_text("2")
    expect(page.locator(".column span")).to_have_count(1)
    expect(page.locator(".times span")).to_have_count(6)
    assert serious_faults(page) == []
    with tab(browser, served.url, viewport={"width": 360, "height": 740}, color_scheme="dark") as team:
        team.go(f"/console/usage#api-key={token}")
        expect(team.page.locator(".card").first).to_contain_text("over budget by")
        expect(team.page.get_by_role("row", name="mock")).to_contain_text("16")
        expect(team.page.locator(".column span")).to_have_count(1)
        assert team.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert serious_faults(team.page) == []


def test_a_revoked_key_is_gone_from_the_page_and_refused(opened: Tab, served: Stack) -> None:
    api_key = httpx.post(f"{served.url}/admin/keys", json={"name": "bob"}, headers=HEADERS).json()
    page = opened.page
    page.on("dialog", lambda dialog: dialog.accept())
    opened.go("/console/tenants")
    card_of(page, "default").get_by_text("1 key", exact=True).click()
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
