"""Prompt embeddings on real SGLang: the rows of tokens are as good as the tokens, and wrong ones do no harm."""

from collections.abc import Iterator

import pytest
from openai import APIError, OpenAI

from tests.acceptance.test_vllm_prompt_embeds import ENV, IDS, MODEL, POOL, SIZE, WIDTH, answer, rows_of
from tests.chaos.fleet import Fleet
from tests.prompt_embeds import embeds, encoded, file
from tests.serving import client_of, outlived
from tests.shallow import shallow_model
from tests.stack import timeline

pytestmark = [pytest.mark.timeout(900), pytest.mark.media]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    engine = {
        "model": MODEL, "engine": "sglang", "path": str(shallow_model()), "block_size": SIZE, "max_model_len": 1024,
        "max_running": 8, "prompt_embeds": True,
        "args": {"dtype": "float32", "max_total_tokens": 8192},
    }  # fmt: skip
    with Fleet(tmp_path_factory.mktemp("embeds") / "fleet", {POOL: engine}, apis=1, workers=2, **ENV) as f:
        yield f


@pytest.fixture
def client(fleet: Fleet) -> Iterator[OpenAI]:
    with client_of(fleet.urls()[0]) as c:
        yield c


def test_the_rows_of_tokens_give_what_the_tokens_give(client: OpenAI) -> None:
    """The rows have each dtype, come several at once, and stand beside tokens."""
    reference = answer(client, IDS)
    response = answer(client, IDS, [rows_of(IDS), rows_of(IDS, "BF16")])
    assert [choice.text for choice in response.choices] == [reference.choices[0].text] * 3
    assert response.usage.prompt_tokens == 3 * len(IDS)
    assert answer(client, given=rows_of(IDS[::-1])).choices[0].text != reference.choices[0].text


def test_no_request_meets_the_kv_of_rows(client: OpenAI) -> None:
    """The same rows are computed anew, other ones as well, and the tokens that SGLang has in their places."""
    for rows in (rows_of(IDS[2:]), rows_of(IDS[2:]), rows_of(IDS[3:])):
        usage = answer(client, given=rows).usage
        assert usage.prompt_tokens_details is None or not usage.prompt_tokens_details.cached_tokens
    zeros = answer(client, [0] * len(IDS[2:]))
    assert zeros.usage.prompt_tokens_details is None or not zeros.usage.prompt_tokens_details.cached_tokens
    assert zeros.choices[0].text != answer(client, given=rows_of(IDS[2:])).choices[0].text


def test_wrong_rows_do_not_end_the_engine(client: OpenAI) -> None:
    """Rows that are refused don't end it, nor do the largest numbers that there are."""
    reference = answer(client, IDS).choices[0].text
    for wrong in (embeds(1, 10, WIDTH - 1), embeds(1, 10, WIDTH + 1), embeds(1, 1024, WIDTH), "AAAA"):
        with pytest.raises(APIError) as exc_info:
            answer(client, given=wrong)
        assert exc_info.value.param == "prompt_embeds"
    largest = b"\xff\xff\x7f\x7f" * (10 * WIDTH)
    assert answer(client, given=encoded(file(("F32", [10, WIDTH], largest)))).usage.completion_tokens == 12
    assert answer(client, IDS).choices[0].text == reference


def test_an_answer_goes_on_elsewhere_when_its_worker_is_killed(fleet: Fleet, client: OpenAI) -> None:
    """Its tokens are tokens behind the same rows. The last test: a worker is gone afterwards."""
    rows = rows_of(IDS[7:])
    whole = answer(client, IDS[7:], max_tokens=200).choices[0].text
    text, id_ = outlived(fleet.stack, POOL, answer(client, given=rows, max_tokens=200, stream=True))
    assert text == whole
    assert timeline(fleet.stack, id_)["attempts"] == 2
