"""Chats are rendered as transformers renders them, without transformers."""

from typing import Any

import pytest

from app.tokenizer import load_tokenizer
from tests.contract.conftest import model_dir

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
