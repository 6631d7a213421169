"""Play, the console's chat, in a real browser against real processes."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.acceptance.test_tools import PLAYS, TEMPLATE, WEATHER
from tests.browser import Tab, ask, play, tab
from tests.pictures import png
from tests.serving import Pools, served_by
from tests.speech.samples import tone, wav
from tests.speech.whisper_like import whisper_like
from tests.stack import Stack, leases, mock_pool, wait_until
from tests.vlm import random_vlm

POOL, SEEING, PAINTING, HEARING, SPEECH = "decode-pool-a", "seeing-pool", "painting-pool", "hearing-pool", "speech-pool"
LONG = "the boat was late and the sea was grey " * 20
MARKDOWN = """# Rivers

A river is a **natural** stream; see [the sea](https://example.org/sea_(salt)) and `x = 1`.

1. the spring
2. the mouth
   - wide

```python
print("<b>no markup</b>")
```

| name | km |
|---|---|
| Nile | 6650 |

<img src=x onerror=alert(1)> [bad](javascript:alert(1))
"""
expect.set_options(timeout=60_000)


def pools(path: Path) -> Pools:
    plays = {**PLAYS, "all sunny": PLAYS["sunny"], "about rivers": MARKDOWN}
    return {
        POOL: mock_pool(step_ms=20.0, script=plays) | {"chat_template": TEMPLATE},
        SEEING: mock_pool(model="seeing") | {"path": str(random_vlm("idefics3", weights=False))},
        PAINTING: mock_pool(model="painter", step_ms=20.0) | {"task": "image"},
        HEARING: mock_pool(model="hearing") | {"path": str(random_vlm("qwen2_audio", weights=False))},
        SPEECH: mock_pool(model="writer")
        | {"task": "transcribe", "path": str(whisper_like(path / "speech", multilingual=False))},
    }


WORKERS = {"w1": POOL, "w2": POOL, "w3": SEEING, "w4": PAINTING, "w5": HEARING, "w6": SPEECH}
served = served_by(pools, WORKERS)


@pytest.fixture
def opened(browser: Browser, served: Stack) -> Iterator[Tab]:
    """A tab on a desktop's screen. In the end, nothing may have gone wrong in it."""
    with tab(browser, served.url, viewport={"width": 1280, "height": 900}) as one:
        yield one


def test_an_answer_has_its_figures_and_says_why_it_came_from_there(opened: Tab) -> None:
    """The second question finds the first one's KV; of its two candidates the bars show one as chosen."""
    play(opened, Max_tokens="40")
    page = opened.page
    ask(opened, LONG)
    expect(page.get_by_role("article", name="Answer of mock")).to_have_attribute("aria-busy", "false")
    ask(opened, "And then?")
    answer = page.get_by_role("article", name="Answer of mock").nth(1)
    expect(answer).to_have_attribute("aria-busy", "false")
    text = answer.inner_text()
    assert "40 tokens" in text
    cached_text = answer.locator("dt:text-is('cached') + dd").inner_text()
    assert int(cached_text.removesuffix(" tokens").replace(",", "")) >= 32
    assert float(answer.locator("dt:text-is('tokens/s') + dd").inner_text()) > 0
    answer.get_by_text("Why this worker").click()
    expect(answer.locator(".candidates > li")).to_have_count(2)
    expect(answer.locator(".candidates > .chosen")).to_contain_text("(chosen)")
    bars = answer.locator(".candidates .bar").all()
    assert all("computing the prompt" in str(bar.get_attribute("aria-label")) for bar in bars)
    answer.get_by_text("Timeline").click()
    expect(answer.locator(".stages")).to_contain_text("decode")


def test_reasoning_and_calls_of_tools_are_shown_and_their_results_go_back(opened: Tab) -> None:
    play(opened, **{"Tools,_as_JSON": json.dumps([WEATHER])})
    page = opened.page
    ask(opened, "The weather in two cities")
    answer = page.get_by_role("article", name="Answer of mock").first
    expect(answer.locator(".call")).to_have_count(2)
    expect(answer.locator(".call").first).to_contain_text("Oslo")
    expect(answer.locator(".reasoning")).to_contain_text("Both.")
    fields = answer.get_by_label("Result of get_weather")
    expect(fields).to_have_count(2)
    for field in fields.all():
        field.fill("all sunny")
    answer.get_by_role("button", name="Send results").click()
    expect(page.get_by_role("article", name="Answer of mock").nth(1)).to_contain_text("It is sunny in Paris.")


def test_tools_that_are_no_json_are_refused_before_anything_is_sent(opened: Tab) -> None:
    play(opened, **{"Tools,_as_JSON": "[{"})
    ask(opened, "hello")
    expect(opened.page.locator(".failed")).to_contain_text("The tools are not valid JSON")


def test_an_answer_that_is_stopped_leaves_its_seat(opened: Tab, served: Stack) -> None:
    play(opened, Max_tokens="2000")
    ask(opened, "at great length, please")
    wait_until(lambda: any(lease.load.running for lease in leases(served, POOL)), "it runs", 60)
    opened.page.keyboard.press("Escape")
    expect(opened.page.locator(".failed")).to_have_text("Stopped.")
    wait_until(lambda: not any(lease.load.running for lease in leases(served, POOL)), "the seat is free", 60)


def answers(opened: Tab) -> Locator:
    return opened.page.get_by_role("article", name="Answer of mock")


def is_complete(answer: Locator) -> None:
    expect(answer).to_have_attribute("aria-busy", "false")
    expect(answer.locator(".failed")).to_have_count(0)


@pytest.mark.parametrize("size", [(390, 844), (360, 640), (1280, 900)])
def test_the_message_box_is_in_view_on_every_screen(browser: Browser, served: Stack, size: tuple[int, int]) -> None:
    width, height = size
    with tab(browser, served.url, viewport={"width": width, "height": height}) as one:
        play(one)
        ask(one, "about rivers")
        is_complete(answers(one))
        for part in (one.page.get_by_label("Message", exact=True), one.page.get_by_role("button", name="Send")):
            expect(part).to_be_in_viewport(ratio=1)
        assert one.page.evaluate("document.documentElement.scrollHeight") <= height


def test_no_key_is_asked_for_where_none_is_looked_at(opened: Tab) -> None:
    play(opened)
    expect(opened.page.get_by_role("button", name="Keys")).not_to_be_visible()


def test_markdown_becomes_elements_and_never_markup(opened: Tab) -> None:
    play(opened)
    ask(opened, "about rivers")
    answer = answers(opened)
    is_complete(answer)
    expect(answer.get_by_role("heading", name="Rivers")).to_be_visible()
    expect(answer.locator("strong")).to_have_text("natural")
    expect(answer.get_by_role("link")).to_have_count(1)
    expect(answer.get_by_role("link")).to_have_attribute("href", "https://example.org/sea_(salt)")
    expect(answer.locator("ol > li")).to_have_count(2)
    expect(answer.locator("ol ul > li")).to_have_text("wide")
    expect(answer.locator(".code pre")).to_have_text('print("<b>no markup</b>")')
    expect(answer.get_by_role("cell", name="6650")).to_be_visible()
    expect(answer).to_contain_text("<img src=x onerror=alert(1)> bad")


def test_a_chat_is_copied_changed_and_answered_again(opened: Tab) -> None:
    opened.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    play(opened, Max_tokens="8")
    page = opened.page
    ask(opened, "about rivers")
    is_complete(answers(opened))
    answers(opened).get_by_role("button", name="Copy answer").click()
    expect(answers(opened).get_by_role("button", name="Copy answer")).to_have_text("Copied")
    clipboard = str(page.evaluate("navigator.clipboard.readText()"))
    assert clipboard.startswith("# Rivers")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.get_by_role("article")).to_have_count(2)
    is_complete(answers(opened))
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Changed message").fill("hello instead")
    page.get_by_role("button", name="Send again").click()
    is_complete(answers(opened))
    expect(page.get_by_role("article")).to_have_count(2)
    expect(page.get_by_role("article", name="Your message")).to_contain_text("hello instead")
    expect(answers(opened)).not_to_contain_text("Rivers")


def test_the_code_of_a_request_runs(opened: Tab) -> None:
    """The quotes are those that break shells and strings."""
    play(opened, Max_tokens="5")
    page = opened.page
    ask(opened, """about rivers: it's a "quote" and \\n""")
    is_complete(answers(opened))
    page.get_by_role("button", name="As code").click()
    dialog = page.get_by_role("dialog", name="This request as code")
    code = {}
    for language in ("curl", "Python", "JavaScript"):
        dialog.get_by_label(language, exact=True).check()
        code[language] = dialog.locator("pre").inner_text()
    reply = json.loads(subprocess.run(["bash", "-c", code["curl"]], capture_output=True, check=True, text=True).stdout)
    text = reply["choices"][0]["message"]["content"]
    again = subprocess.run([sys.executable, "-c", code["Python"]], capture_output=True, check=True, text=True).stdout
    assert reply["usage"]["completion_tokens"] == 5
    assert again.strip() == text.strip()
    assert "client.chat.completions.create({" in code["JavaScript"]
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_a_chat_survives_a_reload_in_the_middle_of_an_answer(opened: Tab) -> None:
    """The answer that was under way is joined, not asked for again: one request has all of its tokens."""
    play(opened, Max_tokens="150")
    page = opened.page
    ask(opened, "go on for a while")
    expect(answers(opened).locator(".text")).not_to_be_empty()
    before = answers(opened).locator(".text").inner_text()
    page.reload()
    is_complete(answers(opened))
    expect(page.get_by_role("article", name="Your message")).to_contain_text("go on for a while")
    assert answers(opened).locator(".text").inner_text().startswith(before[:20])
    expect(answers(opened)).to_contain_text("150 tokens")
    page.reload()
    is_complete(answers(opened))
    page.get_by_role("button", name="New chat").click()
    page.reload()
    expect(page.get_by_label("Model")).to_have_value("mock")
    expect(page.get_by_role("article")).to_have_count(0)


def test_a_chat_survives_its_api_replica(opened: Tab, served: Stack) -> None:
    play(opened, Max_tokens="200")
    ask(opened, "on and on")
    expect(answers(opened).locator(".text")).not_to_be_empty()
    served.names["api"].send_signal(signal.SIGKILL)
    served.names["api"].wait(20)
    expect(answers(opened)).to_contain_text("The connection is lost")
    served.api()
    is_complete(answers(opened))
    expect(answers(opened)).to_contain_text("200 tokens")
    # The browser itself reports what it could not reach.
    opened.wrong[:] = [fault for fault in opened.wrong if "net::ERR" not in fault and "503" not in fault]


def test_a_model_that_hears_gets_a_sound(opened: Tab) -> None:
    play(opened, "hearing", Max_tokens="5")
    file: Any = {"name": "tone.wav", "mimeType": "audio/wav", "buffer": wav(tone(2))}
    opened.page.get_by_label("Add sound").set_input_files(file)
    ask(opened, "What is this?")
    answer = opened.page.get_by_role("article", name="Answer of hearing")
    is_complete(answer)
    expect(opened.page.locator(".question audio")).to_be_visible()
    assert int(answer.locator("dt:text-is('prompt') + dd").inner_text().split()[0]) > 40


def test_a_model_that_writes_down_speech_does(opened: Tab) -> None:
    play(opened, "writer")
    file: Any = {"name": "tone.wav", "mimeType": "audio/wav", "buffer": wav(tone(2))}
    opened.page.get_by_label("Add sound").set_input_files(file)
    opened.page.get_by_role("button", name="Send").click()
    answer = opened.page.get_by_role("article", name="Answer of writer")
    is_complete(answer)
    expect(answer.locator(".text")).not_to_be_empty()


def test_a_model_that_sees_gets_pictures(opened: Tab, served: Stack) -> None:
    """Pictures are part of the prompt: it has more tokens than the text."""
    play(opened, "seeing", Max_tokens="5")
    files: Any = {"name": "red.png", "mimeType": "image/png", "buffer": png(200)}
    opened.page.get_by_label("Add pictures").set_input_files(files)
    expect(opened.page.get_by_role("img", name="red.png")).to_be_visible()
    ask(opened, "What is this?")
    answer = opened.page.get_by_role("article", name="Answer of seeing")
    expect(answer).to_have_attribute("aria-busy", "false")
    assert int(answer.locator("dt:text-is('prompt') + dd").inner_text().split()[0]) > 60


def test_a_model_that_paints_shows_its_picture(opened: Tab) -> None:
    play(opened, "painter", Size="64x64")
    ask(opened, "a red circle")
    picture = opened.page.get_by_role("img", name="a red circle")
    expect(picture).to_be_visible()
    wait_until(lambda: picture.evaluate("image => image.naturalWidth") == 64, "the picture is decoded", 60)


def test_a_chat_goes_on_while_another_page_is_shown(opened: Tab) -> None:
    play(opened, Max_tokens="60")
    ask(opened, "hello")
    opened.page.get_by_role("link", name="Fleet").click()
    opened.page.get_by_role("link", name="Play").click()
    answer = opened.page.get_by_role("article", name="Answer of mock")
    expect(answer).to_have_attribute("aria-busy", "false")
    expect(answer).to_contain_text("60 tokens")
