"""Stored chats, and what else chats tell besides their text, with the official client and two replicas."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from app.pools.schema import Pool
from tests.acceptance.test_tools import PLAYS, TEMPLATE, WEATHER
from tests.serving import Pools, client_of, replica_of, served_by
from tests.stack import Stack, all_free, mock_pool, wait_until

POOL = "decode-pool-a"
MODEL = "org/mock"
THINKS = "<think>Paris, surely.</think>It is Paris."
DEFAULTS = {"temperature": 0.0, "top_p": 0.5, "top_k": 20, "max_new_tokens": 40}


def pools(path: Path) -> Pools:
    model = Path(shutil.copytree(Pool(model="m", engine="mock").model_dir, path / "model"))
    (model / "generation_config.json").write_text(json.dumps(DEFAULTS | {"eos_token_id": [2]}))
    script = PLAYS | {"capital": THINKS, "ends twice": "One.<|im_end|> Two."}
    own = {"chat_template": TEMPLATE, "model": MODEL, "path": str(model)}
    return {POOL: mock_pool(step_ms=5.0, script=script) | own}


served = served_by(pools)


@pytest.fixture(scope="module")
def elsewhere(served: Stack) -> Iterator[OpenAI]:
    """A client of another replica."""
    with client_of(replica_of(served, "other")) as c:
        yield c


def asked(question: str = "What is the capital?", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": question}], "store": True} | fields


@pytest.mark.parametrize("fields", [{}, {"n": 2, "logprobs": True}, {"tools": [WEATHER], "messages": [
    {"role": "user", "content": "How is it in Paris?"},
]}], ids=["plain", "choices", "tools"])  # fmt: skip
def test_a_stored_chat_is_what_was_answered(client: OpenAI, elsewhere: OpenAI, fields: dict[str, Any]) -> None:
    """Any replica has it, whatever the answer was."""
    answer = client.chat.completions.create(**asked(**fields, seed=1, max_tokens=50, metadata={"a": "b"}))
    for one in (client, elsewhere):
        assert one.chat.completions.retrieve(answer.id).to_dict() == answer.to_dict() | {"metadata": {"a": "b"}}


def test_a_streamed_chat_is_stored_as_a_whole(client: OpenAI, elsewhere: OpenAI) -> None:
    with client.chat.completions.stream(**asked(seed=1, stream_options={"include_usage": True})) as stream:
        completion = stream.get_final_completion()
    wait_until(lambda: held(elsewhere, completion.id), "it is stored")
    chat = elsewhere.chat.completions.retrieve(completion.id)
    assert chat.object == "chat.completion"
    assert chat.usage == completion.usage
    assert chat.choices[0].message.content == completion.choices[0].message.content == "It is Paris."
    assert chat.choices[0].finish_reason == completion.choices[0].finish_reason


def held(client: OpenAI, id_: str) -> bool:
    try:
        client.chat.completions.retrieve(id_)
    except openai.NotFoundError:
        return False
    return True


def test_stored_chats_are_found_by_model_and_metadata_page_by_page(client: OpenAI, elsewhere: OpenAI) -> None:
    ids = [
        client.chat.completions.create(**asked(max_tokens=3, metadata={"for": "pages", "odd": str(i % 2)})).id
        for i in range(5)
    ]
    other_id = client.chat.completions.create(**asked(max_tokens=3, store=False, metadata={"for": "pages"})).id
    chats = elsewhere.chat.completions
    first = chats.list(limit=2, metadata={"for": "pages"}, model=MODEL)
    assert [chat.id for chat in first.data] == ids[:2]
    assert first.has_more
    assert [chat.id for chat in first] == ids  # the client goes through all pages
    assert [chat.id for chat in chats.list(order="desc", metadata={"odd": "1"})] == [ids[3], ids[1]]
    assert not chats.list(model="another").data
    assert not held(client, other_id)
    with pytest.raises(openai.BadRequestError, match="'after'"):
        chats.list(after="chatcmpl-unknown")
    with pytest.raises(openai.BadRequestError) as exc:
        chats.list(limit=1000)
    both = {"metadata": "x", "metadata[for]": "nothing"}
    assert httpx.get(f"{client.base_url}chat/completions", params=both).json()["data"] == []
    assert exc.value.param == "limit"


def test_metadata_are_changed_and_a_chat_is_deleted(client: OpenAI, elsewhere: OpenAI) -> None:
    id_ = client.chat.completions.create(**asked(max_tokens=3, metadata={"a": "old"})).id
    assert elsewhere.chat.completions.update(id_, metadata={"a": "new"}).to_dict()["metadata"] == {"a": "new"}
    assert [chat.id for chat in client.chat.completions.list(metadata={"a": "new"})] == [id_]
    assert client.chat.completions.delete(id_).deleted
    for one in (client, elsewhere):
        assert not held(one, id_)
        assert id_ not in [chat.id for chat in one.chat.completions.list()]
    with pytest.raises(openai.NotFoundError):
        elsewhere.chat.completions.update(id_, metadata={})


def test_the_messages_of_a_stored_chat_are_those_that_it_was_asked_with(client: OpenAI, elsewhere: OpenAI) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "the capital?"}]
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": parts, "name": "Eve"},
        {"role": "assistant", "content": "", "refusal": "No."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "Never."}]},
    ]
    id_ = client.chat.completions.create(**asked(messages=messages, max_tokens=3)).id
    page = elsewhere.chat.completions.messages.list(id_, limit=1)
    assert page.has_more
    one, two, three, four = [message.to_dict() for message in page]
    assert one == {"id": f"{id_}-0", "role": "developer", "content": "Be short.", "name": None, "content_parts": None}
    assert (two["content"], two["content_parts"], two["name"]) == ("What is\nthe capital?", parts, "Eve")
    assert (three["content"], three["refusal"]) == ("", "No.")
    assert (four["content"], four["refusal"], four["content_parts"]) == (None, "Never.", None)
    last_first = [message.id for message in client.chat.completions.messages.list(id_, order="desc")]
    assert last_first == [f"{id_}-{number}" for number in (3, 2, 1, 0)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_chat_and_nothing_is_stored(served: Stack, client: OpenAI, stream: bool) -> None:
    before = [chat.id for chat in client.chat.completions.list(limit=100)]
    body = asked("Tell me.", max_tokens=7000, stream=stream, ignore_eos=True)
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.stream(
            "POST", f"{served.url}/v1/chat/completions", json=body, timeout=httpx.Timeout(30, read=0.5)
        ) as response,
    ):
        for _ in response.iter_lines():
            if stream:
                raise httpx.ReadTimeout("enough")
    wait_until(lambda: all_free(served, POOL), "its worker is free", 20)
    assert [chat.id for chat in client.chat.completions.list(limit=100)] == before


def test_a_model_says_what_it_can_and_what_its_defaults_are(served: Stack, client: OpenAI) -> None:
    card = client.models.retrieve(MODEL)
    fields = card.to_dict()
    (entry,) = client.models.list()
    assert fields.keys() - entry.to_dict().keys() == {"pools", "price", "chat_template_kwargs", "reasoning_efforts"}
    assert fields == fields | entry.to_dict()
    assert (fields["max_model_len"], fields["dialect"], fields["sampling_defaults"]) == (8192, "qwen3", DEFAULTS)
    assert fields["capabilities"] == {
        "chat": True, "tools": True, "reasoning": True, "pictures": False, "videos": False,
        "sound": False,
    }  # fmt: skip
    head = httpx.head(f"{served.url}/v1/models/{MODEL}")
    assert (head.status_code, head.content) == (200, b"")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/other")


def test_a_models_own_defaults_are_used_and_told_unless_the_request_says_something(client: OpenAI) -> None:
    """The model is greedy, so that all answers are one; its defaults do not limit their length."""

    def chat(**fields: Any) -> tuple[str | None, int]:
        answer = client.chat.completions.create(**asked("Tell me.", **fields))
        assert answer.usage is not None
        return answer.choices[0].message.content, answer.usage.completion_tokens

    greedy = chat(temperature=0, max_tokens=40)
    assert chat() == greedy
    assert chat(temperature=2, top_p=1, extra_body={"top_k": 0}, seed=1) != greedy
    assert chat(max_tokens=50)[1] == 50
    response = client.responses.create(model=MODEL, input="Tell me.", max_output_tokens=20)
    assert (response.temperature, response.top_p) == (0.0, 0.5)
    assert client.responses.retrieve(response.id) == response
    assert client.responses.create(model=MODEL, input="Tell me.", max_output_tokens=20, temperature=1).temperature == 1


def test_tokens_of_reasoning_are_told_whole_streamed_and_stored(client: OpenAI, elsewhere: OpenAI) -> None:
    reasoning_count = len(tokens_of(client, THINKS.partition("</think>")[0].removeprefix("<think>")))
    answer = client.chat.completions.create(**asked())
    with client.chat.completions.stream(**asked(store=False, stream_options={"include_usage": True})) as stream:
        completion = stream.get_final_completion()
    for usage in (answer.usage, completion.usage, elsewhere.chat.completions.retrieve(answer.id).usage):
        assert usage is not None
        assert usage.completion_tokens_details is not None
        assert usage.completion_tokens_details.reasoning_tokens == reasoning_count


def tokens_of(client: OpenAI, text: str) -> list[int]:
    url = str(client.base_url).removesuffix("/v1/")
    ids: list[int] = httpx.post(f"{url}/tokenize", json={"model": MODEL, "prompt": text}).json()["tokens"]
    return ids


@pytest.mark.parametrize("stream", [False, True])
def test_a_special_token_that_marks_nothing_is_no_content(client: OpenAI, stream: bool) -> None:
    """The engine shows all special tokens where tools are offered."""
    fields = asked("It ends twice.", store=False, tools=[WEATHER], max_tokens=9, extra_body={"ignore_eos": True})
    if stream:
        pieces = [chunk.choices[0].delta.content for chunk in client.chat.completions.create(**fields, stream=True)]
        text = "".join(piece or "" for piece in pieces)
    else:
        text = client.chat.completions.create(**fields).choices[0].message.content or ""
    assert text.startswith("One. Two.")
    assert "<|" not in text


def test_the_prompts_tokens_and_their_logprobs_are_told(client: OpenAI) -> None:
    """The fields are those of vLLM; and each token of the answer has its id, with tools too."""
    fields = asked("How is it in Paris?", tools=[WEATHER], logprobs=True, top_logprobs=1)
    extra = {"return_token_ids": True, "return_tokens_as_token_ids": True, "prompt_logprobs": 1}
    answer = client.chat.completions.create(**fields, extra_body=extra)
    body = answer.to_dict()
    assert answer.usage is not None
    prompt: Any = body["prompt_token_ids"]
    assert len(prompt) == answer.usage.prompt_tokens
    choice: Any = body["choices"][0]  # type: ignore[index]
    assert len(choice["token_ids"]) == answer.usage.completion_tokens
    assert [lp["token"] for lp in choice["logprobs"]["content"]] == [f"token_id:{t}" for t in choice["token_ids"]]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    first, *others = body["prompt_logprobs"]  # type: ignore[misc]
    assert first is None
    assert all(str(token) in alternatives for token, alternatives in zip(prompt[1:], others, strict=True))
    stored_chat = client.chat.completions.retrieve(answer.id).to_dict()
    assert stored_chat["prompt_logprobs"] == body["prompt_logprobs"]
