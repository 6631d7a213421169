"""The console in a real browser: each page does its work against real processes, without an error, for everybody."""

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.acceptance.test_security import create, xylem
from tests.browser import READY, Tab, ask, play, serious_faults, tab
from tests.serving import served_by
from tests.stack import Stack, free_port, leases, mock_pool, pid_of_worker, wait_until

POOL = "decode-pool-a"
LONG = "the boat was late and the sea was grey " * 20
PAGES = ("/console", "/console/fleet", "/console/batches", "/console/tenants", "/console/usage")
expect.set_options(timeout=60_000)


served = served_by(
    {POOL: mock_pool(step_ms=20.0)},
    {"w1": POOL, "w2": POOL, "batch": "batch"},
    XYLEM_SIGN_IN_KEY="a-link",
    XYLEM_LOGS="{path}",
)


@pytest.fixture
def opened(browser: Browser, served: Stack) -> Iterator[Tab]:
    """A tab on a desktop's screen. In the end, nothing may have gone wrong in it."""
    with tab(browser, served.url, viewport={"width": 1280, "height": 900}) as one:
        yield one


def chat(served: Stack, text: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "mock", "messages": [{"role": "user", "content": text}], "max_tokens": 4} | fields
    answer: dict[str, Any] = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60).json()
    return answer


def test_the_fleet_is_live(opened: Tab, served: Stack) -> None:
    """Seats fill while a request runs, and a worker that is put to sleep says so; nothing is loaded again."""
    opened.go("/console/fleet")
    page = opened.page
    section = page.get_by_role("region", name=POOL)
    expect(section.get_by_role("listitem")).to_have_count(2)
    with httpx.stream(
        "POST", f"{served.url}/v1/completions", timeout=60,
        json={"model": "mock", "prompt": LONG, "max_tokens": 1000, "min_tokens": 1000, "stream": True},
    ) as streaming:  # fmt: skip
        lines = streaming.iter_lines()  # kept: without it the connection would be closed
        next(lines)
        expect(section).to_contain_text("1 of 64")
        expect(section).to_contain_text(re.compile(r"about \d+ tokens/s"))
        expect(page.get_by_role("region", name="Latest requests")).to_contain_text("answering on")
    expect(section.get_by_role("img", name="KV blocks cached").first).to_be_visible()
    host = leases(served, POOL)[0].worker.host
    expect(page.get_by_role("region", name="Hosts").get_by_role("row", name=host)).to_contain_text("2")
    worker = leases(served, POOL)[0].worker.id
    assert httpx.post(f"{served.url}/admin/pools/{POOL}/sleep", json={"workers": [worker]}, timeout=60).is_success
    card = section.locator("li", has_text=worker)
    expect(card.locator(".state")).to_have_text("asleep")
    assert httpx.post(f"{served.url}/admin/pools/{POOL}/wake", json={"workers": [worker]}, timeout=60).is_success
    expect(card.locator(".state")).to_have_text("ready")


def test_a_requests_way_is_shown_also_where_its_worker_died(opened: Tab, served: Stack) -> None:
    with httpx.stream(
        "POST", f"{served.url}/v1/completions", timeout=90,
        json={"model": "mock", "prompt": "on the way", "max_tokens": 150, "stream": True},
    ) as streaming:  # fmt: skip
        lines = streaming.iter_lines()
        id_ = json.loads(next(lines).removeprefix("data: "))["id"]
        wait_until(lambda: pid_of_worker(served, POOL, id_), "it is on a worker", 60)
        dead = pid_of_worker(served, POOL, id_)
        name = next(n for n, process in served.names.items() if process.pid == dead)
        served.names[name].send_signal(signal.SIGKILL)
        assert any("[DONE]" in line for line in lines)
    served.worker(POOL, f"{name}-again")
    opened.go("/console/fleet")
    page = opened.page
    grave = page.get_by_role("region", name=POOL).locator(".card", has_text="Found dead")
    expect(grave.locator(".state")).to_have_text("lost")
    top = served.xylem("top", "--once", "--url", served.url).stdout
    assert f"{grave.get_by_role('heading').inner_text()} lost" in top
    page.get_by_label("Request", exact=True).fill(id_)
    page.get_by_role("button", name="Show its timeline").click()
    expect(page.locator(".timeline")).to_contain_text("It moved to another worker once")
    expect(page.locator(".timeline .stages > li")).to_have_count(4)
    served.wait_ready(2)


def test_the_tree_of_prefixes_shows_what_prompts_share_and_who_has_it(opened: Tab, served: Stack) -> None:
    """The tree shows digests: nothing of a prompt is in the page."""
    for end in ("one", "two", "three"):
        chat(served, f"{LONG} {end}")
    opened.go("/console/fleet")
    opened.page.get_by_role("button", name="Show prefixes").click()
    tree = opened.page.locator(".tree").first
    expect(tree).to_contain_text("Cached on")
    holders = {lease.worker.id for lease in leases(served, POOL)}
    assert any(worker in tree.inner_text() for worker in holders)
    assert "boat" not in httpx.get(f"{served.url}/admin/fleet/prefixes").text


def batch_file(count: int, bad: int = 0, tokens: int = 4) -> dict[str, Any]:
    bodies = [
        {"model": "mock", "max_tokens": tokens, "messages": [{"role": "user", "content": f"fact {i}"}]}
        | ({"stream": True} if i < bad - 1 else {"temperature": 99} if i < bad else {})
        for i in range(count)
    ]
    lines = [
        json.dumps({"custom_id": f"line-{i}", "method": "POST", "url": "/v1/chat/completions", "body": body})
        for i, body in enumerate(bodies)
    ]
    return {"name": "requests.jsonl", "mimeType": "application/jsonl", "buffer": "\n".join(lines).encode()}


def submit(opened: Tab, file: dict[str, Any]) -> str:
    """The batch's id."""
    page = opened.page
    page.get_by_label("Drop a file of requests here").set_input_files(file)  # type: ignore[arg-type]
    page.get_by_role("button", name="Submit the batch").click()
    status = page.locator("form.upload [role=status]")
    expect(status).to_contain_text("Submitted as")
    return status.inner_text().removeprefix("Submitted as ").removesuffix(".")


def test_a_batch_is_answered_and_its_results_and_failures_are_read(opened: Tab, tmp_path: Path) -> None:
    opened.go("/console/batches")
    page = opened.page
    card = page.get_by_role("listitem").filter(has_text=submit(opened, batch_file(10, bad=3)))
    expect(card.locator(".state")).to_have_text("completed")
    expect(card).to_contain_text("7 of 10 lines answered, 3 failed")
    with page.expect_download() as download:
        card.get_by_role("button", name="Results").click()
    download.value.save_as(tmp_path / "results")
    ids = {json.loads(line)["custom_id"] for line in (tmp_path / "results").read_text().splitlines()}
    assert ids == {f"line-{i}" for i in range(3, 10)}
    card.get_by_role("button", name="Failures by reason").click()
    rows = card.get_by_role("row")
    expect(rows).to_have_count(3)  # one code has two messages
    expect(rows.nth(1)).to_contain_text("line-0, line-1")
    expect(rows.nth(1)).to_contain_text("stream")
    expect(rows.nth(2)).to_contain_text("temperature")


def test_a_file_is_dropped_and_its_batch_paused_resumed_and_cancelled(opened: Tab) -> None:
    opened.go("/console/batches")
    page = opened.page
    text = batch_file(40, tokens=2000)["buffer"].decode()
    transfer = page.evaluate_handle(
        "text => { const t = new DataTransfer(); t.items.add(new File([text], 'dropped.jsonl')); return t; }", text
    )
    page.dispatch_event(".zone", "drop", {"dataTransfer": transfer})
    expect(page.locator("form.upload [role=status]")).to_contain_text("dropped.jsonl")
    expect(page.locator("form.upload [role=status]")).to_contain_text("40 lines, for /v1/chat/completions")
    page.get_by_role("button", name="Submit the batch").click()
    card = page.get_by_role("listitem").filter(has=page.get_by_role("button", name="Pause")).first
    id_ = card.get_by_role("heading").inner_text()
    card = page.get_by_role("listitem").filter(has_text=id_)
    for button, state in (("Pause", "paused"), ("Resume", "in progress"), ("Cancel", "cancelled")):
        card.get_by_role("button", name=button).click()
        expect(card.locator(".state")).to_have_text(state)
    expect(card).to_contain_text("0 failed, 40 cancelled")
    card.get_by_role("button", name="Failures by reason").click()
    expect(card).to_contain_text("40 lines not executed")


def test_a_file_that_is_no_batch_is_not_submitted(opened: Tab) -> None:
    opened.go("/console/batches")
    file: Any = {"name": "photo.jsonl", "mimeType": "application/jsonl", "buffer": b"\x89PNG"}
    opened.page.get_by_label("Drop a file of requests here").set_input_files(file)
    expect(opened.page.locator("form.upload [role=status]")).to_contain_text("its first line is not JSON")
    expect(opened.page.get_by_role("button", name="Submit the batch")).to_be_disabled()


def test_the_end_of_each_processs_log_is_shown(opened: Tab, served: Stack) -> None:
    """Shown are the last lines of a long log; a name that leads out of the folder is that of no process."""
    (served.directory / "long.log").write_text("a line of it\n" * 10_000 + "the last line\n")
    opened.go("/console/fleet")
    logs = opened.page.get_by_role("region", name="Logs", exact=True)
    logs.get_by_label("Process").select_option("long")
    expect(logs.locator("pre")).to_contain_text("the last line")
    end = httpx.get(f"{served.url}/admin/logs/long").json()
    assert (end["lines"][0], end["lines"][-1], end["whole"]) == ("a line of it", "the last line", False)
    assert len("\n".join(end["lines"])) <= 2**16
    (served.directory.parent / "secret.log").write_text("secret")
    assert httpx.get(f"{served.url}/admin/logs/..%2Fsecret").status_code == 404
    assert httpx.get(f"{served.url}/admin/logs", headers={"origin": "http://evil.example"}).status_code == 403


@pytest.fixture(scope="module")
def locked(served: Stack) -> str:
    """The URL of a replica that wants keys."""
    port = free_port()
    served.api("locked", port=port, XYLEM_REQUIRE_KEYS="true", XYLEM_ADMIN_KEY="sesame", XYLEM_USAGE="false")
    wait_until(lambda: served.ready(f"http://127.0.0.1:{port}"), "the other API listens", 60)
    return f"http://127.0.0.1:{port}"


def test_keys_are_asked_for_and_kept_in_the_tab_only(browser: Browser, served: Stack, locked: str) -> None:
    """Play needs an API key, and Fleet the admin key; a wrong one is told, and nothing is in a cookie."""
    key = create(served, [locked], "alice")
    with tab(browser, locked) as console_tab:
        page = console_tab.page
        console_tab.go("/console/fleet")
        dialog = page.get_by_role("dialog", name="Keys")
        expect(dialog).to_be_visible()
        for admin_key in ("wrong", "sesame"):
            dialog.get_by_label("Admin key").fill(admin_key)
            dialog.get_by_role("button", name="Use these keys").click()
            if admin_key == "wrong":
                expect(dialog).to_contain_text("Admin endpoints need")
        expect(page.get_by_role("region", name=POOL).locator(".meter").first).to_be_visible()
        page.get_by_role("link", name="Play").click()
        expect(dialog).to_be_visible()
        dialog.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("alert")).to_contain_text("API key")
        page.get_by_role("button", name="Keys").click()
        dialog.get_by_label("API key").fill(key)
        page.keyboard.press("Enter")
        expect(dialog).not_to_be_visible()
        expect(page.get_by_label("Model")).to_have_value("mock")
        ask(console_tab, "hello")
        expect(page.get_by_role("article", name="Answer of mock")).to_have_attribute("aria-busy", "false")
        expect(page.get_by_role("alert")).not_to_be_visible()
        assert page.context.cookies() == []
        assert page.evaluate("localStorage.length") == 0
        assert sorted(page.evaluate("Object.keys(sessionStorage)")) == [
            "xylem.admin-key",
            "xylem.api-key",
            "xylem.chat",
        ]
        # The browser itself reports each refusal.
        console_tab.wrong[:] = [fault for fault in console_tab.wrong if "401" not in fault and "403" not in fault]


def test_a_link_signs_in_and_its_key_leaves_the_address_bar(browser: Browser, served: Stack, locked: str) -> None:
    """The key is in no request's path and so in no log; the page that the link names may change things."""
    with tab(browser, locked) as console_tab:
        page = console_tab.page
        console_tab.go("/console/tenants#admin-key=sesame")
        expect(page.locator(".card").first).to_be_visible()
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert page.url == f"{locked}/console/tenants"
        assert page.evaluate("history.length") <= 2
        page.get_by_role("button", name="New key").first.click()
        page.get_by_label("Name", exact=True).fill("by-link")
        page.get_by_role("button", name="Make the key").click()
        expect(page.locator("pre").first).to_contain_text("xyl-")
    assert "sesame" not in served.log("locked")


def test_the_key_of_a_link_opens_admin_endpoints_to_web_pages(served: Stack) -> None:
    """A page without it may not change anything, and commands on this machine may, as before."""
    url, page = f"{served.url}/admin/pools/{POOL}/limits", {"origin": served.url}
    assert httpx.patch(url, json={}, headers=page).status_code == 403
    assert "the link that `xylem up` prints" in httpx.patch(url, json={}, headers=page).text
    assert httpx.patch(url, json={}, headers=page | {"authorization": "Bearer a-link"}).status_code == 200
    assert httpx.patch(url, json={}).status_code == 200


def test_a_live_list_of_batches_ends_with_its_key(served: Stack, locked: str) -> None:
    """The list was open when the key was revoked."""
    headers = {"authorization": f"Bearer {create(served, [locked], 'bob')}", "accept": "text/event-stream"}
    with httpx.stream("GET", f"{locked}/v1/batches", headers=headers, timeout=60) as live:
        lines = live.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["data"] == []
        assert xylem(served, "keys", "revoke", "bob").returncode == 0
        messages = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert messages[-1]["error"]["code"] == "invalid_api_key"


def test_a_key_has_so_many_live_lists_at_most(served: Stack, locked: str) -> None:
    """300 of them held up every other tenant."""
    mine, other = ({"authorization": f"Bearer {create(served, [locked], name)}"} for name in ("carol", "dave"))
    url, events = f"{locked}/v1/batches", {"accept": "text/event-stream"}
    with ExitStack() as exits:
        for _ in range(32):
            live = exits.enter_context(httpx.stream("GET", url, headers=mine | events, timeout=60))
            assert live.status_code == 200
        answer = httpx.get(url, headers=mine | events, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert answer.headers["retry-after"]
        assert httpx.get(url, headers=mine, timeout=60).status_code == 200
        with httpx.stream("GET", url, headers=other | events, timeout=60) as live:
            assert live.status_code == 200


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_each_page_is_for_everybody(browser: Browser, served: Stack, scheme: Any, width: int) -> None:
    """axe finds nothing serious, with an answer and a batch on the page; on a phone nothing is beside the screen."""
    with tab(browser, served.url, color_scheme=scheme, viewport={"width": width, "height": 740}) as console_tab:
        page = console_tab.page
        play(console_tab)
        ask(console_tab, "hello")
        expect(page.get_by_role("article", name="Answer of mock")).to_have_attribute("aria-busy", "false")
        page.get_by_text("Why this worker").click()
        page.get_by_text("Timeline").click()
        expect(page.locator(".stages")).to_be_visible()
        for path, link in zip(PAGES, ("Play", "Fleet", "Batches", "Tenants", "Usage"), strict=True):
            page.get_by_role("link", name=link).click()
            expect(page).to_have_title(f"{link} · Xylem")
            if path != "/console":
                expect(page.locator(".card:visible, .batches > .hint:visible").first).to_be_visible()
            assert serious_faults(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        page.get_by_role("button", name="Keys").click()
        assert serious_faults(page) == []


def test_a_keyboard_is_enough(opened: Tab) -> None:
    """The keys skip to the page, reach another one and leave a dialog."""
    opened.go()
    page = opened.page
    expect(page.get_by_label("Model")).not_to_have_value("")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()
    for name in ("Xylem", "Play", "Fleet"):
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name=name)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Fleet", level=1)).to_be_visible()
    expect(page.locator("main")).to_be_focused()
    page.go_back()
    expect(page.get_by_label("Model")).to_be_visible()
    page.get_by_role("button", name="Keys").press("Enter")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).not_to_be_visible()
    expect(page.get_by_role("button", name="Keys")).to_be_focused()


def test_the_files_are_guarded_and_asked_for_again(served: Stack) -> None:
    """No page has scripts of elsewhere or inline, none is framed; what has not changed is not sent twice."""
    page = httpx.get(f"{served.url}/console")
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "set-cookie" not in page.headers
    assert page.text.count("<script") == 1
    again = httpx.get(f"{served.url}/console", headers={"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for path in ("/console/static/../routes.py", "/console/static/%2e%2e/routes.py", "/console/none"):
        assert httpx.get(f"{served.url}{path}").status_code == 404
    foreign = httpx.get(f"{served.url}/admin/fleet", headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403


def test_the_console_can_be_off_and_a_live_stream_does_not_hold_up_a_stop(served: Stack) -> None:
    """The stream has no end of its own, and running answers have ten minutes to end."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    api = served.api("without", port=port, XYLEM_CONSOLE="false")
    wait_until(lambda: served.ready(url), "the other API listens", 60)
    assert httpx.get(f"{url}/console").status_code == 404
    with httpx.stream("GET", f"{url}/admin/fleet", headers={"accept": "text/event-stream"}, timeout=60) as live:
        lines = live.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["pools"]
        api.send_signal(signal.SIGTERM)
        list(lines)
    began = time.monotonic()
    assert api.wait(60) in (0, -signal.SIGTERM)
    assert time.monotonic() - began < 60
    assert "Traceback" not in served.log("without")


def test_the_first_paint_is_marked(opened: Tab) -> None:
    """The mark, which the benchmark measures as `console_ready_ms`, says that a model can be asked."""
    opened.go()
    opened.page.wait_for_function(f"() => performance.getEntriesByName('{READY}').length > 0")
    expect(opened.page.get_by_role("button", name="Send")).to_be_enabled()
