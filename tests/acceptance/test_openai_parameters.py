"""Every parameter that OpenAI's clients can send has its effect: sync and async, streamed and whole."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import openai
import pytest
from openai import OpenAI

from app.dialects.families import reasoning_only
from app.dialects.output_parser import OutputParser
from app.dialects.parts import Content, Reasoning
from app.schemas.neutral import NEUTRAL, NEUTRAL_OF_MESSAGES
from tests.serving import client_of, served_by, serving
from tests.stack import Stack, mock_pool, timeline, wait_until

Endpoint = Literal["chat", "text"]
ENDPOINTS = ("chat", "text")
PROMPT = "Tell me about the sea."
ANSWER_TOKENS = 40  # the mock's own length of an answer; EOS follows
BLOCK = 16
POOL = mock_pool(step_ms=1.0, answer_tokens=ANSWER_TOKENS, block_size=BLOCK)
MARKERS = {"begin": "e", "end": "a"}  # in whatever text
# What the openai client doesn't know by name, and `timeout`, which it takes for its own.
EXTENSIONS = {
    "min_tokens", "top_k", "min_p", "repetition_penalty", "stop_token_ids", "include_stop_str_in_output", "ignore_eos",
    "priority", "timeout",
}  # fmt: skip


served = served_by({"decode-pool-a": POOL})


@dataclass
class Choice:
    text: str = ""
    finish: str | None = None
    stop: int | str | None = None
    logprobs: list[Any] = field(default_factory=list)  # chat: one per token; text: one per token, as a tuple


@dataclass
class Said:
    """An answer, however it came."""

    choices: list[Choice]
    usage: Any = None
    usages: list[Any] = field(default_factory=list)  # with each chunk that had one
    chunks: int = 0

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def tokens(self) -> int:
        count: int = self.usage.completion_tokens
        return count


class Asker:
    """Asks through the official client in one of four ways, and gives the answer in one shape."""

    def __init__(self, url: str, client: str, stream: bool) -> None:
        self.url, self.client, self.stream = f"{url}/v1", client, stream

    def __call__(self, endpoint: Endpoint, **fields: Any) -> Said:
        what: dict[str, Any] = {"model": "mock", "stream": self.stream, "seed": 7, "temperature": 1.0, "max_tokens": 16}
        what |= {"messages": [{"role": "user", "content": PROMPT}]} if endpoint == "chat" else {"prompt": PROMPT}
        if self.stream:
            what["stream_options"] = {"include_usage": True}
        what |= fields
        what["extra_body"] = {k: what.pop(k) for k in EXTENSIONS & set(what)}
        options: dict[str, Any] = {"base_url": self.url, "api_key": "none", "max_retries": 0, "timeout": 30}
        if self.client == "async":
            return asyncio.run(self._ask_async(endpoint, what, options))
        # Reading the system's certificates would take longer than all the rest.
        with openai.OpenAI(**options, http_client=openai.DefaultHttpxClient(verify=False)) as client:
            create: Any = client.chat.completions.create if endpoint == "chat" else client.completions.create
            answer = create(**what)
            return _streamed(endpoint, list(answer)) if self.stream else _whole(endpoint, answer)

    async def _ask_async(self, endpoint: Endpoint, what: dict[str, Any], options: dict[str, Any]) -> Said:
        http_client = openai.DefaultAsyncHttpxClient(verify=False)
        async with openai.AsyncOpenAI(**options, http_client=http_client) as client:
            create: Any = client.chat.completions.create if endpoint == "chat" else client.completions.create
            answer = await create(**what)
            return _streamed(endpoint, [c async for c in answer]) if self.stream else _whole(endpoint, answer)


def _logprobs(endpoint: Endpoint, shown: Any) -> list[Any]:
    if shown is None:
        return []
    if endpoint == "chat":
        return list(shown.content)
    lists = (shown.tokens, shown.token_logprobs, shown.top_logprobs, shown.text_offset)
    return list(zip(*lists, strict=True))


def _whole(endpoint: Endpoint, answer: Any) -> Said:
    kind, prefix = ("chat.completion", "chatcmpl-") if endpoint == "chat" else ("text_completion", "cmpl-")
    assert (answer.object, answer.model) == (kind, "mock")
    assert answer.id.startswith(prefix)
    assert [c.index for c in answer.choices] == list(range(len(answer.choices)))
    choices = []
    for c in answer.choices:
        if endpoint == "chat":
            assert c.message.role == "assistant"
        text = c.message.content if endpoint == "chat" else c.text
        choices.append(Choice(text, c.finish_reason, c.stop_reason, _logprobs(endpoint, c.logprobs)))
    return Said(choices, answer.usage)


def _streamed(endpoint: Endpoint, chunks: list[Any]) -> Said:
    kind = "chat.completion.chunk" if endpoint == "chat" else "text_completion"
    assert {(c.object, c.model, c.id, c.created) for c in chunks} == {(kind, "mock", chunks[0].id, chunks[0].created)}
    by_index: dict[int, Choice] = {}
    for c in (c for chunk in chunks for c in chunk.choices):
        if endpoint == "chat" and c.index not in by_index:
            assert c.delta.role == "assistant"
        choice = by_index.setdefault(c.index, Choice())
        assert choice.finish is None, "nothing follows the end of a choice"
        choice.text += (c.delta.content or "") if endpoint == "chat" else c.text
        choice.finish, choice.stop = c.finish_reason, getattr(c, "stop_reason", None)
        choice.logprobs += _logprobs(endpoint, c.logprobs)
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    choices = [by_index[i] for i in range(len(by_index))]
    return Said(choices, usages[-1] if usages else None, usages, len(chunks))


WAYS = ("sync-whole", "sync-streamed", "async-whole", "async-streamed")


@pytest.fixture(scope="module", params=["sync-whole", "async-streamed"])
def ask(request: pytest.FixtureRequest, served: Stack) -> Asker:
    client, how = request.param.split("-")
    return Asker(served.url, client, stream=how == "streamed")


@pytest.fixture(params=ENDPOINTS)
def endpoint(request: pytest.FixtureRequest) -> Endpoint:
    kind: Endpoint = request.param
    return kind


@pytest.fixture(scope="module")
def plain(served: Stack) -> dict[Endpoint, str]:
    """The whole answer of each endpoint to the defaults of `Asker`: the measure for the others."""
    whole = Asker(served.url, "sync", stream=False)
    return {"chat": whole("chat").text, "text": whole("text").text}


def tokenize(http: httpx.Client, text: str) -> list[int]:
    ids: list[int] = http.post("/tokenize", json={"model": "mock", "prompt": text}).json()["tokens"]
    return ids


@pytest.mark.parametrize("ask", WAYS, indirect=True)
def test_the_same_seed_gives_the_same_text_streamed_or_whole(
    ask: Asker, endpoint: Endpoint, plain: dict[Endpoint, str]
) -> None:
    """A different seed gives a different text.

    To the server both clients are one: the tests below ask in two ways of four.
    """
    answer = ask(endpoint)
    assert answer.text == plain[endpoint] != ""
    assert answer.choices[0].finish == "length"
    assert ask(endpoint, seed=8).text != answer.text
    if ask.stream:
        assert answer.chunks > 2, "it comes in pieces"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_answer_has_at_most_so_many_tokens(ask: Asker, name: str) -> None:
    """The reason of its end is `length`."""
    answer = ask("chat", **{"max_tokens": None, name: 5})
    assert (answer.tokens, answer.choices[0].finish) == (5, "length")


def test_max_completion_tokens_is_the_newer_name_and_wins(ask: Asker) -> None:
    """OpenAI's clients may send both."""
    assert ask("chat", max_tokens=9, max_completion_tokens=4).tokens == 4


def test_without_a_limit_a_text_has_16_tokens_and_a_chat_ends_by_itself(ask: Asker) -> None:
    """OpenAI's defaults."""
    assert ask("text", max_tokens=None).tokens == 16
    chat = ask("chat", max_tokens=None)
    assert (chat.tokens, chat.choices[0].finish) == (ANSWER_TOKENS + 1, "stop")


def test_ignore_eos_goes_on_to_the_limit(ask: Asker, endpoint: Endpoint) -> None:
    """The answer would have ended before."""
    answer = ask(endpoint, max_tokens=60, ignore_eos=True)
    assert (answer.tokens, answer.choices[0].finish) == (60, "length")
    assert (ask(endpoint, max_tokens=60).choices[0].finish) == "stop"


def test_min_tokens_puts_the_end_off(ask: Asker, endpoint: Endpoint) -> None:
    """EOS doesn't count before."""
    assert ask(endpoint, max_tokens=60, min_tokens=50).tokens >= 50


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_a_stop_string_ends_the_answer(
    ask: Asker, endpoint: Endpoint, plain: dict[Endpoint, str], include: bool, several: bool
) -> None:
    """The string is in the text only on demand, though it may begin and end within tokens."""
    text = plain[endpoint]
    stop = text[20:26]
    at = text.index(stop)
    answer = ask(endpoint, stop=["never said", stop] if several else stop, include_stop_str_in_output=include)
    assert answer.text == text[: at + len(stop) if include else at]
    assert (answer.choices[0].finish, answer.choices[0].stop) == ("stop", stop)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_ends_the_answer(
    ask: Asker, endpoint: Endpoint, plain: dict[Endpoint, str], http: httpx.Client, include: bool
) -> None:
    """Given by its id."""
    ids = tokenize(http, plain[endpoint])
    at = ids.index(ids[6])
    answer = ask(endpoint, stop_token_ids=[ids[6]], include_stop_str_in_output=include)
    answer_ids = ids[: at + 1 if include else at]
    assert answer.text == http.post("/detokenize", json={"model": "mock", "tokens": answer_ids}).json()["prompt"]
    assert (answer.choices[0].finish, answer.choices[0].stop, answer.tokens) == ("stop", ids[6], at + 1)


def test_before_min_tokens_nothing_stops_the_answer(ask: Asker, endpoint: Endpoint, plain: dict[Endpoint, str]) -> None:
    """Stop strings and EOS do not stop it."""
    answer = ask(endpoint, stop=plain[endpoint][4:8], min_tokens=12)
    assert answer.tokens >= 12
    assert answer.text.startswith(plain[endpoint][:8])


def test_n_gives_that_many_choices_with_their_own_indexes(
    ask: Asker, endpoint: Endpoint, plain: dict[Endpoint, str]
) -> None:
    """All different, the first as if it were alone, and together they are counted once with the prompt."""
    answer = ask(endpoint, n=3)
    assert len({c.text for c in answer.choices}) == 3
    assert answer.text == plain[endpoint]
    assert answer.tokens == 3 * 16
    assert {c.finish for c in answer.choices} == {"length"}
    assert answer.usage.prompt_tokens == ask(endpoint).usage.prompt_tokens


@pytest.mark.parametrize("greedy", [{"temperature": 0}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_what_leaves_one_token_to_choose_from_makes_the_seed_irrelevant(
    ask: Asker, endpoint: Endpoint, greedy: dict[str, float]
) -> None:
    """All of them to the same text."""
    texts = {ask(endpoint, **greedy, seed=seed).text for seed in (1, 2)} | {ask(endpoint, temperature=0).text}
    assert len(texts) == 1


def test_logit_bias_forces_and_forbids_tokens(
    ask: Asker, endpoint: Endpoint, plain: dict[Endpoint, str], http: httpx.Client
) -> None:
    """100 is always, -100 is never."""
    token = tokenize(http, plain[endpoint])[0]
    word = http.post("/detokenize", json={"model": "mock", "tokens": [token]}).json()["prompt"]
    assert ask(endpoint, logit_bias={str(token): 100}, max_tokens=4).text == word * 4
    assert not ask(endpoint, logit_bias={str(token): -100}).text.startswith(word + " ")


@pytest.mark.parametrize("penalty", [
    {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 1.5},
])  # fmt: skip
def test_a_penalty_makes_way_for_the_second_likeliest(
    ask: Asker, endpoint: Endpoint, http: httpx.Client, penalty: dict[str, float]
) -> None:
    """Greedy sampling repeats one of two tokens forced almost equally for ever; with a penalty, not twice in a row.

    The tokens are marks and no words, since the mock says those of its own accord.
    """
    first, second = (tokenize(http, mark)[0] for mark in "!?")
    fields = {"logit_bias": {str(first): 100, str(second): 99}, "temperature": 0, "max_tokens": 2}
    assert ask(endpoint, **fields).text == "!!"
    assert ask(endpoint, **fields, **penalty).text == "!?"


def test_a_chats_logprobs_are_those_of_its_tokens(ask: Asker, plain: dict[Endpoint, str]) -> None:
    """The alternatives are as many as asked for, likeliest first; none come when only the chosen were asked for."""
    answer = ask("chat", logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert "".join(lp.token for lp in logprobs) == answer.text == plain["chat"]
    assert len(logprobs) == answer.tokens
    for lp in logprobs:
        assert bytes(lp.bytes).decode() == lp.token
        assert lp.logprob <= 0
        assert len(lp.top_logprobs) == 3
        assert [t.logprob for t in lp.top_logprobs] == sorted((t.logprob for t in lp.top_logprobs), reverse=True)
    bare_answer = ask("chat", logprobs=True)
    assert [lp.top_logprobs for lp in bare_answer.choices[0].logprobs] == [[]] * bare_answer.tokens
    assert ask("chat", logprobs=False).choices[0].logprobs == []


def test_a_texts_logprobs_are_those_of_its_tokens(ask: Asker, plain: dict[Endpoint, str]) -> None:
    """Their offsets in the text are there."""
    answer = ask("text", logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert "".join(token for token, *_ in logprobs) == answer.text == plain["text"]
    assert len(logprobs) == answer.tokens
    for token, logprob, top, offset in logprobs:
        assert logprob <= 0
        assert len({token, *top}) == len(top) in (2, 3)  # itself is one of them
        assert answer.text[offset : offset + len(token)] == token
    bare_answer = ask("text", logprobs=0)
    assert all(top == {token: logprob} for token, logprob, top, _ in bare_answer.choices[0].logprobs)


def test_echo_puts_the_prompt_before_the_answer(ask: Asker, plain: dict[Endpoint, str]) -> None:
    """The prompt is before each choice; the tokens that are counted are the generated ones."""
    answer = ask("text", echo=True, n=2)
    assert answer.text == PROMPT + plain["text"]
    assert answer.choices[1].text.startswith(PROMPT)
    assert answer.tokens == 32


@pytest.mark.parametrize("max_tokens", [0, 4])
def test_echo_with_logprobs_scores_the_prompt(ask: Asker, max_tokens: int) -> None:
    """Each of its tokens but the first, which nothing predicts; with max_tokens=0 nothing but the prompt."""
    answer = ask("text", echo=True, logprobs=1, max_tokens=max_tokens)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs) == answer.usage.prompt_tokens + max_tokens
    assert answer.tokens == max_tokens
    assert "".join(token for token, *_ in logprobs) == answer.text
    assert (answer.text == PROMPT) == (max_tokens == 0)
    assert [logprob is None for _, logprob, *_ in logprobs] == [True] + [False] * (len(logprobs) - 1)
    assert answer.choices[0].finish == "length"


def test_prompts_may_be_text_or_tokens_one_or_several(
    ask: Asker, http: httpx.Client, plain: dict[Endpoint, str]
) -> None:
    """Choice i of prompt p has number p * n + i, and says what it would say alone."""
    other = "Another prompt altogether"
    ids, other_ids = tokenize(http, PROMPT), tokenize(http, other)
    texts = [plain["text"], ask("text", prompt=other).text]
    assert [c.text for c in ask("text", prompt=ids).choices] == texts[:1]
    for many in ([PROMPT, other], [ids, other_ids]):
        answer = ask("text", prompt=many)
        assert [c.text for c in answer.choices] == texts
        assert answer.usage.prompt_tokens == len(ids) + len(other_ids)
        assert answer.tokens == 32
    pairs = ask("text", prompt=[PROMPT, other], n=2)
    assert [c.text for c in pairs.choices[::2]] == texts


def test_usage_counts_prompt_and_answer(ask: Asker, endpoint: Endpoint, http: httpx.Client) -> None:
    """The prompt's tokens are those of /tokenize."""
    body = {"messages": [{"role": "user", "content": PROMPT}]} if endpoint == "chat" else {"prompt": PROMPT}
    usage = ask(endpoint).usage
    assert usage.prompt_tokens == http.post("/tokenize", json={"model": "mock", **body}).json()["count"]
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_repeated_prompt_is_found_in_the_engines_cache(ask: Asker, endpoint: Endpoint) -> None:
    """Whole blocks of it, and never its last token."""
    prompt = f"{time.time()} " + "word " * 100
    fields = {"messages": [{"role": "user", "content": prompt}]} if endpoint == "chat" else {"prompt": prompt}
    first, second = (ask(endpoint, **fields).usage for _ in range(2))
    assert first.prompt_tokens_details.cached_tokens < 2 * BLOCK
    assert second.prompt_tokens_details.cached_tokens == (second.prompt_tokens - 1) // BLOCK * BLOCK


def test_user_and_priority_change_nothing_in_the_answer(
    ask: Asker, endpoint: Endpoint, plain: dict[Endpoint, str]
) -> None:
    """Urgent or not, the text is the same."""
    for priority in (-1, 0, 5):
        assert ask(endpoint, user="somebody", priority=priority).text == plain[endpoint]


MESSAGES = [{"role": "user", "content": PROMPT}]
SAID = {"role": "assistant", "content": "Which one?"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 8},
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 8},
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 8, "store": False},
}


def answered(http: httpx.Client, path: str, fields: dict[str, Any]) -> str:
    """The text that answers a body of that endpoint with these fields besides."""
    answer = http.post(path, json={"model": "mock", "seed": 7} | BODIES[path] | fields)
    assert answer.status_code == 200, (fields, answer.text)
    body = answer.json()
    if path == "/v1/responses":
        return str(body["output"][0]["content"][0]["text"])
    return str(body["choices"][0]["text"] if path == "/v1/completions" else body["choices"][0]["message"]["content"])


def test_token_ids_are_continued_with_token_ids(http: httpx.Client) -> None:
    """The shape is vLLM's: the same tokens as a completion has, whole and streamed, with text where it is asked for."""
    prompt = http.post("/tokenize", json={"model": "mock", "prompt": PROMPT}).json()["tokens"]
    sampling = {"max_tokens": 6, "temperature": 0, "logprobs": 1}
    plain = http.post("/v1/completions", json={"prompt": prompt, "return_token_ids": True} | sampling).json()
    (text,) = plain["choices"]
    body = {"token_ids": prompt, "sampling_params": sampling, "request_id": "mine", "return_token_ids": True}
    whole = http.post("/inference/v1/generate", json=body).json()
    (choice,) = whole["choices"]
    assert (whole["request_id"], whole["output_mode"], whole["model"]) == ("mine", "tokens", "mock")
    assert (whole["prompt_token_ids"], whole["usage"]) == (prompt, plain["usage"])
    assert (choice["token_ids"], choice["finish_reason"]) == (text["token_ids"], "length")
    assert "text" not in choice
    first = choice["logprobs"]["content"][0]
    assert (first["token_id"], first["rank"]) == (choice["token_ids"][0], 1)
    assert first["top_logprobs"][0] == {name: first[name] for name in ("token_id", "logprob", "rank")}
    text_choice = http.post("/inference/v1/generate", json=body | {"output_mode": "text"}).json()["choices"][0]
    assert (text_choice["text"], text_choice["token_ids"]) == (text["text"], text["token_ids"])
    *chunks, usage, end = events(
        http, "/inference/v1/generate", body | {"stream_options": {"include_usage": True}, "max_tokens": None}
    )
    pieces = [json.loads(chunk) for chunk in chunks]
    assert [t for piece in pieces for t in piece["choices"][0]["token_ids"]] == text["token_ids"]
    assert ["prompt_token_ids" in piece for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert (json.loads(usage)["usage"]["completion_tokens"], end) == (6, "[DONE]")


@pytest.mark.parametrize(("fields", "param"), [
    ({"token_ids": []}, "token_ids"), ({"token_ids": [-1]}, "token_ids.0"), ({"token_ids": [2**31]}, "token_ids"),
    ({"sampling_params": {"temperature": 3}}, "sampling_params.temperature"), ({"features": {"x": 1}}, "features"),
    ({"sampling_params": {"prompt": "x"}}, "sampling_params.prompt"), ({"output_mode": "x"}, "output_mode"),
    ({"sampling_params": {"max_tokens": 10**6}}, "token_ids"), ({"sampling_params": {"no": 1}}, "sampling_params.no"),
])  # fmt: skip
def test_what_is_wrong_with_token_ids_is_named(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    """Its name is its place in this request, not in the completion that it becomes."""
    answer = http.post("/inference/v1/generate", json={"token_ids": [5], "sampling_params": {}} | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("path", BODIES)
def test_the_only_model_that_is_served_need_not_be_named(http: httpx.Client, path: str) -> None:
    """The answer names it, as at vLLM."""
    for body in (BODIES[path], BODIES[path] | {"model": None}):
        answer = http.post(path, json=body)
        assert (answer.status_code, answer.json()["model"]) == (200, "mock")


@pytest.mark.parametrize("path", BODIES)
def test_what_changes_nothing_is_taken_in_every_endpoint(http: httpx.Client, path: str) -> None:
    """Each such value of each parameter that OpenAI and vLLM know, alone and all of them at once: the same answer."""
    plain = answered(http, path, {})
    table = {name: (*values, None) for name, values in NEUTRAL.items() if name not in BODIES[path]}
    if path == "/v1/completions":  # where these two mean something else
        table |= {"add_special_tokens": (True, None), "logprobs": (None,)}
    for name, values in table.items():
        for value in values:
            assert answered(http, path, {name: value}) == plain, (name, value)
    assert answered(http, path, {name: values[0] for name, values in table.items()}) == plain
    fields = {"metadata": {"run": "7"}, "safety_identifier": "somebody", "presence_penalty": 0}
    assert answered(http, path, fields) == plain


def test_a_history_may_have_what_an_answer_did_not(http: httpx.Client) -> None:
    """Nothing of it is in the prompt."""
    path = "/v1/chat/completions"
    plain = answered(http, path, {"messages": [*MESSAGES, SAID, *MESSAGES]})
    assert plain != answered(http, path, {})
    for nothing in (
        {name: values[0] for name, values in NEUTRAL_OF_MESSAGES.items() if values},
        dict.fromkeys(NEUTRAL_OF_MESSAGES),
    ):
        assert answered(http, path, {"messages": [*MESSAGES, SAID | nothing, *MESSAGES]}) == plain
    silent = [{"role": "assistant", "content": content, "tool_calls": []} for content in (None, "")]
    none, empty = (answered(http, path, {"messages": [*MESSAGES, message, *MESSAGES]}) for message in silent)
    assert none == empty


@pytest.fixture(scope="module")
def thinks(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The same model, of which some words are taken for the markers of its reasoning."""
    path = tmp_path_factory.mktemp("thinks")
    with serving(valkey_url, path, {"decode-pool-a": POOL | {"reasoning": MARKERS}}, XYLEM_DEPLOYMENT="thinks") as s:
        yield s


@pytest.mark.parametrize("resumable", [False, True])
def test_reasoning_is_told_from_content_streamed_or_whole(thinks: Stack, served: Stack, resumable: bool) -> None:
    """Together they are the text that the same model gives where its markers aren't known."""
    body = {"model": "mock", "messages": MESSAGES, "max_tokens": 200, "seed": 1, "ignore_eos": True, "n": 2}
    plain = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60).json()
    whole = httpx.post(f"{thinks.url}/v1/chat/completions", json=body, timeout=60).json()
    assert whole["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    for choice, same in zip(whole["choices"], plain["choices"], strict=True):
        parser, text = OutputParser(reasoning_only(**MARKERS), {}), same["message"]["content"]
        parts, message = parser.feed(text) + parser.close(), choice["message"]
        assert message["reasoning_content"] == "".join(p.text for p in parts if isinstance(p, Reasoning))
        assert message["content"] == "".join(p.text for p in parts if isinstance(p, Content))
        assert message["reasoning_content"]
        assert len(message["content"]) > 20
    texts = [{"reasoning_content": "", "content": ""} for _ in range(2)]
    headers = {"x-xylem-resumable": "1"} if resumable else {}
    with OpenAI(base_url=f"{thinks.url}/v1", api_key="none", default_headers=headers) as c:
        own = {"ignore_eos": body.pop("ignore_eos")}
        for chunk in c.chat.completions.create(**body, stream=True, extra_body=own):  # type: ignore[call-overload]
            for choice in chunk.choices:
                delta = choice.delta.model_dump()
                for part in ("reasoning_content", "content"):
                    texts[choice.index][part] += delta.get(part) or ""
    assert texts == [{k: c["message"][k] for k in ("reasoning_content", "content")} for c in whole["choices"]]


@pytest.mark.parametrize(("path", "body"), [
    ("chat/completions", {"messages": MESSAGES, "reasoning_effort": "high"}),
    ("responses", {"input": "x", "reasoning": {"effort": "high"}}),
    ("responses", {"input": "x", "reasoning": {"effort": "high"}, "store": False}),
    ("messages", {"messages": MESSAGES, "max_tokens": 4, "output_config": {"effort": "high"}}),
])  # fmt: skip
def test_a_header_names_the_effort_that_a_model_has_instead_of_the_requests(
    ask: Asker, path: str, body: dict[str, Any]
) -> None:
    """Agents send one to every model; this one's template knows none."""
    answer = httpx.post(f"{ask.url}/{path}", json={"model": "mock", "stream": ask.stream, **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-xylem-reasoning-effort"] == "ignored"


def test_a_client_may_send_every_default_of_openais(ask: Asker, plain: dict[Endpoint, str]) -> None:
    """The names are those that the client itself knows; a received answer is part of the next request."""
    answer = ask(
        "chat", audio=None, function_call="none", functions=[], metadata={}, modalities=["text"], n=1,
        parallel_tool_calls=True, prediction=None, prompt_cache_retention="in_memory", reasoning_effort="none",
        response_format={"type": "text"}, safety_identifier="me", service_tier="auto", store=False, tool_choice="none",
        tools=[], top_logprobs=0, verbosity="medium", web_search_options=None,
    )  # fmt: skip
    assert answer.text == plain["chat"]
    if ask.stream:
        options = {"include_usage": True, "include_obfuscation": False}
        assert ask("chat", stream_options=options).text == plain["chat"]
    with openai.OpenAI(base_url=ask.url, api_key="none", max_retries=0) as client:
        first = client.chat.completions.create(model="mock", messages=MESSAGES, max_tokens=4)  # type: ignore[arg-type]
        message = first.choices[0].message
        for variant in (message, message.model_dump(), message.model_dump() | {"annotations": []}):
            ask("chat", messages=[*MESSAGES, variant, *MESSAGES])


def test_a_timeout_of_its_own_ends_a_request(ask: Asker, endpoint: Endpoint) -> None:
    """A 504 when nothing is out yet, and else an event that the client raises."""
    with pytest.raises(openai.APIError, match="deadline") as over:  # 7,000 tokens take longer
        ask(endpoint, max_tokens=7000, ignore_eos=True, timeout=0.5)
    assert over.value.code == "deadline_exceeded"
    if not ask.stream:
        assert isinstance(over.value, openai.InternalServerError)
        assert over.value.status_code == 504


def events(http: httpx.Client, path: str, body: dict[str, Any]) -> list[str]:
    """The data of each server-sent event, as it is on the wire."""
    with http.stream("POST", path, json={"model": "mock", "stream": True, "max_tokens": 6} | body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [line.removeprefix("data: ") for line in answer.iter_lines() if line]


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]}),
    ("/v1/completions", {"prompt": PROMPT}),
])  # fmt: skip
def test_a_stream_ends_with_done_and_has_usage_where_it_was_asked_for(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    """The usage is absent, null until the last chunk, or growing with each chunk."""
    without = events(http, path, body)
    assert without[-1] == "[DONE]"
    assert not any('"usage"' in event for event in without)
    at_end = events(http, path, body | {"stream_options": {"include_usage": True}})
    assert at_end[:-2]
    assert all('"usage":null' in event for event in at_end[:-2])
    assert '"choices":[],"usage":{' in at_end[-2]
    always = events(http, path, body | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    counts = [int(n) for n in re.findall(r'"completion_tokens":(\d+)', "\n".join(always))]
    assert counts == sorted(counts)
    # Only [DONE] has none. Chunks of one write may share a count.
    assert len(counts) == len(always) - 1
    assert (counts[0] == 0, counts[-1]) == ("messages" in body, 6)  # a chat's first chunk has the role


def test_what_is_tokenized_can_be_detokenized(http: httpx.Client) -> None:
    """Text of any kind; and a conversation as the model sees it."""
    for text in (PROMPT, 'Zażółć "gęślą"\n\t🙂', ""):
        ids = tokenize(http, text)
        assert http.post("/detokenize", json={"model": "mock", "tokens": ids}).json() == {"prompt": text}
    body = {"model": "mock", "messages": [{"role": "user", "content": PROMPT}]}
    result = http.post("/tokenize", json=body).json()
    assert result["count"] == len(result["tokens"])
    assert result["max_model_len"] == 8192
    text = http.post("/detokenize", json={"model": "mock", "tokens": result["tokens"]}).json()["prompt"]
    assert PROMPT in text
    bare = http.post("/tokenize", json=body | {"add_generation_prompt": False}).json()
    assert bare["count"] < result["count"]


def test_models_are_listed_as_openai_lists_them(served: Stack) -> None:
    """The client itself lists them."""
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        models = list(client.models.list())
        assert [m.id for m in models] == ["mock"]
        one: dict[str, Any] = client.models.retrieve("mock").to_dict()
    # Of one model only.
    assert [pool["engine"] for pool in one.pop("pools")] == ["mock"]
    assert (one.pop("chat_template_kwargs"), one.pop("reasoning_efforts"), one.pop("price")) == ([], [], None)
    assert one == models[0].to_dict()
    assert models[0].object == "model"


def test_the_probes_say_that_all_is_well(http: httpx.Client) -> None:
    """Live, ready, and with how many workers."""
    assert http.get("/live").json() == {"status": "ok"}
    for path in ("/health", "/ready"):
        answer = http.get(path)
        assert answer.status_code == 200
        assert answer.json() == {"ready": True, "redis": True, "subscribed": True, "workers": {"mock": 1}}
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", http.get("/version").json()["version"])


def test_the_root_leads_browsers_to_the_console_and_tells_others_what_is_here(http: httpx.Client) -> None:
    links = http.get("/").json()
    assert links["api"] == "/v1"
    for name in ("models", "docs", "openapi", "ready", "console"):
        assert http.get(links[name]).status_code == 200
    browser = http.get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (browser.status_code, browser.headers["location"]) == (307, links["console"])


def metric(http: httpx.Client, name: str, **labels: str) -> float:
    """0 where there is none yet."""
    for line in http.get("/metrics").text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.split("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
            return float(value)
    return 0.0


def cost_and_busy_time(http: httpx.Client) -> tuple[float, float]:
    """Seconds of all answered requests, and of the worker."""
    return (
        metric(http, "xylem_cost_worker_seconds_sum", model="mock"),
        metric(http, "xylem_worker_busy_seconds_total"),
    )


def test_the_metrics_count_requests_and_tokens(http: httpx.Client, served: Stack) -> None:
    """Each request counts once, at its end, with its outcome."""
    increments: list[tuple[str, dict[str, str], float]] = [
        ("xylem_requests_total", {"model": "mock", "outcome": "ok"}, 2),
        ("xylem_requests_total", {"model": "mock", "outcome": "deadline_exceeded"}, 1),
        ("xylem_output_tokens_sum", {"model": "mock"}, 10),
        ("xylem_prompt_tokens_count", {"model": "mock"}, 3),
        ("xylem_kv_hit_rate_count", {"model": "mock"}, 2),
        ("xylem_cost_worker_seconds_count", {"model": "mock"}, 2),
        ("xylem_ttft_seconds_count", {"model": "mock"}, 2),
        ("xylem_itl_seconds_count", {"model": "mock"}, 2),
        ("xylem_request_seconds_count", {"model": "mock"}, 3),
    ]
    before = [metric(http, name, **labels) for name, labels, _ in increments]
    refusal_count, busy = metric(http, "xylem_refusals_total", reason="deadline_exceeded"), cost_and_busy_time(http)
    tokens = 0
    for stream in (False, True):
        tokens += Asker(served.url, "sync", stream=stream)("chat", max_tokens=5).tokens
    # A deadline that passes before the first token.
    with pytest.raises(openai.APIError):
        Asker(served.url, "sync", stream=False)("chat", timeout=1e-6)
    assert tokens == 10
    for (name, labels, more), was in zip(increments, before, strict=True):
        assert metric(http, name, **labels) == was + more, name
    assert metric(http, "xylem_refusals_total", reason="deadline_exceeded") == refusal_count + 1
    assert cost_and_busy_time(http)[0] > busy[0]

    def paid() -> bool:
        cost, busy_s = (now - was for now, was in zip(cost_and_busy_time(http), busy, strict=True))
        return cost <= busy_s

    wait_until(paid, "the worker has told that it was busy for as long as the requests cost")
    assert metric(http, "xylem_requests_in_flight") == 0


def test_answers_come_while_others_are_being_made(served: Stack) -> None:
    """The engine batches: ten answers come whole while a long one goes on."""
    with client_of(served.url) as client:

        def asked(number: int, tokens: int, **fields: Any) -> Any:
            return client.completions.create(
                model="mock", prompt=f"{PROMPT} {number}", max_tokens=tokens, seed=1, extra_body={"ignore_eos": True},
                **fields,
            )  # fmt: skip

        long = asked(10, 7000, stream=True)
        id_ = next(iter(long)).id
        with ThreadPoolExecutor(10) as threads:
            answers = list(threads.map(lambda number: asked(number, 50), range(10)))
        state = timeline(served, id_)["state"]
        long.close()
    assert len({a.choices[0].text for a in answers}) == 10
    assert [a.usage.completion_tokens for a in answers] == [50] * 10
    assert state == "answering"
