"""Chats are rendered as transformers renders them, without transformers; and tokenizers that only it can read."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.dispatch.models.models import load_models
from app.errors import SettingsError
from app.openai.prompt import chat_prompt
from app.pools.schema import Pool, PoolsFile
from app.tokenizing.tokenizer import load_tokenizer
from tests.contract.conftest import model_dir
from tests.unit.test_tools import CALL, RESULT, WEATHER
from tests.unit.test_tools import chat as asked

CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "What is the capital of France?"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "turns": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!\n"},
        {"role": "user", "content": '  "quoted" <b>é</b> 🙂\n\n'},
    ],
    "named": [{"role": "user", "content": "Hi", "name": "me"}],
    "empty": [{"role": "user", "content": ""}],
}
# What templates of well-known models are made of.
TEMPLATES = {
    "blocks": "{% for m in messages %}\n  {% if m.name %}\nQ: {{ m.content|trim }}\n  {% endif %}\n{% endfor %}\nA:",
    "loop": "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m['content'] }}{% endfor %}",
    "tojson": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2, ensure_ascii=True) }}",
    "special": "{{ bos_token }}{{ eos_token }}{% if add_generation_prompt %}<go>{% endif %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "undefined": "{% if tools is defined and tools %}T{% endif %}{% if not date_string is defined %}D{% endif %}",
    "none": "{{ tools is none }}{{ documents is none }}{{ tools is defined }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "date": "{{ strftime_now('%d %b %Y') }}",
    "methods": "{{ messages[0].content.split(' ')[-1].strip() }}{{ messages[0].items()|list|length }}",
}


@pytest.fixture(scope="module")
def theirs() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(model_dir())


@pytest.mark.parametrize("generate", [True, False])
def test_the_models_own_template_gives_what_transformers_gives(theirs: Any, generate: bool) -> None:
    """Text and tokens, with and without the opening of an answer."""
    ours = load_tokenizer(model_dir())
    for name, chat in CHATS.items():
        text = ours.render_chat(chat, add_generation_prompt=generate)
        assert text == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=generate), name
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"], name


@pytest.mark.parametrize("template", TEMPLATES)
def test_any_template_gives_what_transformers_gives(theirs: Any, template: str, tmp_path: Any) -> None:
    """The same trimming, filters, globals and undefined names."""
    file = tmp_path / "template.jinja"
    file.write_text(TEMPLATES[template])
    ours = load_tokenizer(model_dir(), file)
    for name, chat in CHATS.items():
        assert ours.render_chat(chat) == theirs.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True, chat_template=TEMPLATES[template]
        ), name


PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
TRIMMING = PLAIN.replace("m.content", "m.content | trim")
SHOWING = "{{ tools | tojson }}" + PLAIN.replace("</>", "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}")


@pytest.mark.parametrize("tools", [None, [WEATHER]])
def test_tools_and_their_calls_are_shown_as_transformers_shows_them(theirs: Any, tools: Any, tmp_path: Any) -> None:
    """Arguments as an object."""
    file = tmp_path / "template.jinja"
    file.write_text(SHOWING)
    body = asked(messages=[{"role": "assistant", "content": "a", "tool_calls": [CALL]}, RESULT], tools=tools)
    object_call = {**CALL, "function": {**CALL["function"], "arguments": {"city": "Kraków"}}}
    messages = [{"role": "assistant", "content": "a", "tool_calls": [object_call]}, {"role": "tool", "content": "7°C"}]
    assert chat_prompt(load_tokenizer(model_dir(), file), body.messages, body) == theirs.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=True, chat_template=SHOWING
    )


@pytest.mark.parametrize("template", [PLAIN, TRIMMING])
@pytest.mark.parametrize("content", ["Well", " Well ", "a", "Well,\n"])
def test_an_answer_is_gone_on_with_where_transformers_goes_on(
    theirs: Any, template: str, content: str, tmp_path: Any
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(template)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}]
    body = asked(messages=messages, continue_final_message=True)
    assert chat_prompt(load_tokenizer(model_dir(), file), body.messages, body) == theirs.apply_chat_template(
        messages, tokenize=False, continue_final_message=True, chat_template=template
    )


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##ly", "!"]  # of a model of BERT's time


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 64}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return tmp_path


def pool(folder: Path, **fields: Any) -> Pool:
    return Pool(model="m", engine="vllm", task="embed", path=folder, **fields)


def test_a_model_without_a_tokenizer_json_is_read_as_its_engine_reads_it(folder: Path) -> None:
    import transformers

    pools_file = PoolsFile.model_validate({"pools": {"p": pool(folder, tokenizer_mode="engine")}})
    ours, theirs = load_models(pools_file)["m"].tokenizer, transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("Hello worldly!", "", "hello [MASK] there"):
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.special["unk_token"] == "[UNK]"
    assert ours.vocab_size == len(WORDS)


def test_without_it_such_a_model_is_refused_with_the_key_that_helps(folder: Path) -> None:
    with pytest.raises(SettingsError, match="tokenizer_mode: engine"):
        load_models(PoolsFile.model_validate({"pools": {"p": pool(folder)}}))


def test_what_no_engine_can_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 64}))
    with pytest.raises(SettingsError, match=f"path={tmp_path}: no tokenizer there"):
        load_models(PoolsFile.model_validate({"pools": {"p": pool(tmp_path, tokenizer_mode="engine")}}))
