"""`make pictures`: the guide's pictures of the console, of a simulated fleet at work, into ops/pictures/."""

import io
import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from ops.docs.tenants_picture import ADMIN, tenants_fleet
from tests.browser import chromium, tab
from tests.stack import Stack, mock_pool, stack, valkey

_PICTURES = Path(__file__).parents[1] / "pictures"
_SIZE: Any = {"width": 1100, "height": 760}
_HANDBOOK = (
    "You answer questions of visitors of a public library. Say on which shelf a book stands, if you know it. " * 12
)
_ASKED = "Which shelves have maps?"
_ANSWER = """Maps stand on **two** shelves:

| shelf | what |
|---|---|
| 12 | atlases of the world |
| 14 | city maps, *on loan for a week* |

The catalogue has them, too:

```sh
curl "https://library.example/find?q=maps"
```
"""
_QUESTIONS = ("Where are the atlases?", "May I bring tea?", "Who wrote this?", "When do you close?", "Is there a lift?")


@contextmanager
def fleet(directory: Path) -> Iterator[Stack]:
    """Prefill and decode apart for one model, and two workers for another."""
    slow = {"step_ms": 25.0, "prefill_tokens_per_s": 2500.0, "total_blocks": 1024, "max_running": 16}
    pools = {
        "chat-pool": mock_pool(model="chat", script={_ASKED: _ANSWER}, **slow),
        "large-decode": mock_pool(model="large", **slow) | {"role": "decode"},
        "large-prefill": mock_pool(model="large", **slow) | {"role": "prefill"},
    }
    with valkey(directory) as redis, stack(redis, directory, pools) as s:
        s.api()
        workers = ("chat-pool", "chat-pool", "large-decode", "large-prefill", "batch")
        for number, pool in enumerate(workers):
            s.worker(pool, f"worker-{number}")
        s.wait_ready(2, "chat")
        s.wait_ready(1, "large")
        yield s


@contextmanager
def load(s: Stack) -> Iterator[None]:
    """Chats with one beginning, until the end."""
    over, http = threading.Event(), httpx.Client(base_url=s.url, timeout=120, limits=httpx.Limits(max_connections=None))

    def ask(number: int) -> None:
        model = ("chat", "large")[number % 2]
        while not over.is_set():
            question = _QUESTIONS[number % len(_QUESTIONS)]
            messages = [
                {"role": "system", "content": _HANDBOOK},
                {"role": "user", "content": question * (1 + number % 9)},
            ]
            body = {"model": model, "messages": messages, "max_tokens": 120}
            http.post("/v1/chat/completions", json=body)

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(18)]
    for asker in askers:
        asker.start()
    try:
        yield
    finally:
        over.set()
        for asker in askers:
            asker.join()
        http.close()


def play(page: Page) -> None:
    page.get_by_label("Model").select_option("chat")
    page.get_by_label("System message").fill(_HANDBOOK)
    page.get_by_label("Message", exact=True).fill(_ASKED)
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer[aria-busy=false]")
    page.get_by_text("Why this worker").click()
    page.wait_for_selector(".candidates")
    page.locator(".log").evaluate("log => { log.scrollTop = 0; }")


def fleet_page(page: Page) -> None:
    page.wait_for_selector(".card")
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length > 6")
    page.get_by_role("button", name="Show prefixes").click()
    page.wait_for_selector(".tree")
    page.wait_for_timeout(3000)  # speeds are measured
    page.evaluate("window.scrollTo(0, 0)")
    busy = "card => !card.querySelector('.figure').textContent.startsWith('0 of')"
    page.wait_for_function(f"() => [...document.querySelectorAll('.card')].filter({busy}).length > 1")


def way(s: Stack, page: Page) -> None:
    """Shows the way of a request whose prompt was computed on a prefill worker."""
    for number in range(20):
        body = {"model": "large", "prompt": f"{number} {_HANDBOOK[number:]} " * 4, "max_tokens": 40}
        id_ = httpx.post(f"{s.url}/v1/completions", json=body, timeout=120).json()["id"]
        if len(httpx.get(f"{s.url}/requests/{id_}").json()["prompts"][0]["workers"]) > 1:
            break
    page.get_by_label("Request", exact=True).fill(id_)
    page.get_by_role("button", name="Show its timeline").click()
    page.wait_for_selector(".timeline .stages")


def batches(page: Page) -> None:
    for name, count, bad in (("shelves.jsonl", 60, 4), ("letters.jsonl", 400, 0)):
        lines = [
            {
                "custom_id": f"line-{i}", "method": "POST", "url": "/v1/chat/completions",
                "body": {"model": "chat", "max_tokens": 20, "messages": [{"role": "user", "content": f"Book {i}?"}]}
                | ({"stream": True} if i < bad else {}),
            }
            for i in range(count)
        ]  # fmt: skip
        text = "\n".join(map(json.dumps, lines)).encode()
        file: Any = {"name": name, "mimeType": "application/jsonl", "buffer": text}
        page.get_by_label("Drop a file of requests here").set_input_files(file)
        page.get_by_role("button", name="Submit the batch").click()
        if bad:
            page.wait_for_selector(".state.completed", timeout=120_000)
            page.get_by_role("button", name="Failures by reason").click()
            page.wait_for_selector("table")
    page.wait_for_function("() => [...document.querySelectorAll('.card .bar')].every(bar => bar.offsetWidth)")
    page.wait_for_timeout(2000)


def tenants_page(page: Page) -> None:
    page.wait_for_selector(".column span")
    page.get_by_role("listitem").filter(has_text="research").locator("summary").click()
    page.evaluate("window.scrollTo(0, 0)")


def taken(browser: Browser, s: Stack, name: str, show: Callable[[Page], None], path: str, part: str = "body") -> None:
    """`part`: a selector of what is taken of the page."""
    with tab(browser, s.url, viewport=_SIZE) as console_tab:
        console_tab.page.add_init_script(f"sessionStorage.setItem('xylem.admin-key', '{ADMIN}')")
        console_tab.go(path)
        show(console_tab.page)
        raw = console_tab.page.screenshot() if part == "body" else console_tab.page.locator(part).screenshot()
    picture = Image.open(io.BytesIO(raw)).convert("P", palette=Image.Palette.ADAPTIVE, colors=128)
    picture.save(_PICTURES / f"console-{name}.png", optimize=True)


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="xylem-pictures-") as name,
        fleet(Path(name)) as s,
        sync_playwright() as playwright,
    ):
        browser = chromium(playwright)
        taken(browser, s, "batches", batches, "/console/batches")
        with load(s):
            taken(browser, s, "play", play, "/console")
            taken(browser, s, "fleet", fleet_page, "/console/fleet")
            taken(browser, s, "way", partial(way, s), "/console/fleet", ".timeline")
        with tenants_fleet(Path(name) / "tenants") as tenants_stack:
            taken(browser, tenants_stack, "tenants", tenants_page, "/console/tenants")
        browser.close()


if __name__ == "__main__":
    main()
