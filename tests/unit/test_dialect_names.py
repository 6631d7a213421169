"""A dialect is found by the names that other engines have for it, or guessed from a chat template."""

import pytest

from app.dialects.families import DIALECTS
from app.dialects.names import dialect_names, find_dialect, guess_dialect, nearest

TEMPLATES = {
    "qwen3": '{{ \'<tool_call>\\n{"name": "\' }}{{ tool_call.name }}{{ \'", "arguments": \' }}</tool_call> <think>',
    "qwen3_coder": "{{- '<tool_call>\\n<function=' + name + '>\\n' }}{{- '<parameter=' + args_name + '>\\n' }}",
    "glm": "{{ '<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value></tool_call>",
    "deepseek_v3": "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + '```json'}}",
    "deepseek_v31": "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'}}",
    "deepseek_v32": "<｜DSML｜function_calls><｜DSML｜invoke name=",
    "deepseek_v4": "<｜DSML｜tool_calls><｜DSML｜invoke name=",
    "deepseek_v41": "<｜DSML｜ calls><｜DSML｜ invoke name=",
    "kimi_k2": "<|tool_calls_section_begin|>{% for %}<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>",
    "kimi_k3": '{{ "<|open|>message role=" }}<|sep|>',
    "mistral": '{{ "[TOOL_CALLS] [" + calls + "]" }}',
    "mistral_v11": '{{ "[TOOL_CALLS]" + name + "[ARGS]" }}',
    "llama3": '<|start_header_id|>assistant<|end_header_id|>{{ \'{"name": "\' }}{{ \'"parameters": \' }}',
    "llama4": "<|header_start|>assistant<|header_end|>",
    "gemma4": "{{- '<|tool_call>call:' + name + '{' -}}{{ '<|\"|>' }}",
    "gpt_oss": '{{- "<|start|>assistant<|channel|>analysis<|message|>" }}',
    "granite": "<|start_of_role|>{{ role }}<|end_of_role|><|tool_call|>",
    "granite4": "<|start_of_role|>assistant<|end_of_role|><tool_call> arguments </tool_call>",
    "phi4": "{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}",
    "nemotron": "<TOOLCALL>[{{ calls }}]</TOOLCALL>",
    "minimax_m2": "<minimax:tool_call><invoke name=",
    "seed_oss": "<seed:tool_call><function=x><parameter=y>",
    "lfm2": "{{ '<|tool_call_start|>[' + name + '(' + arguments + ')]<|tool_call_end|>' }}",
    "olmo3": "<functions>{{ tools | tojson }}</functions><function_calls>{{ call }}</function_calls>",
    "cohere": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "{{ name }}", "parameters": {{ arguments }}}]',
    "apertus": "{%- set begin = '<|tools_prefix|>' -%}{%- set end = '<|tools_suffix|>' -%}",
    "hunyuan": "{%- set begin = '<tool_calls{}>'.format(suffix) %}{%- set separator = '<tool_sep{}>'.format(suffix) %}",
    "hunyuan_a13b": "<|startoftext|>{{ content }}<tool_calls>[{{ calls }}]</tool_calls>",
    "jamba": "<|bom|><|assistant|><tool_calls>[{{ calls }}]</tool_calls>",
    "minimax_m1": "<beginning_of_sentence>ai name=assistant\n<tool_calls>\n{{ calls }}\n</tool_calls>",
    "apriel": "<available_tools>{{ tools }}</available_tools><tool_call></tool_call> arguments <tool_calls>[",
    "solar": "<|tool_call:begin|>{{ id }}<|tool_call:name|>{{ name }}<|tool_call:args|>{{ arguments }}",
    "gigachat3": "function call<|role_sep|>\n{{ call }}<|message_sep|>",
    "gigachat35": "<｜GCML｜tool_calls>",
    "minicpm5": "{{- '<function name=\"' ~ name ~ '\">' }}{{- '<param name=\"' ~ key ~ '\">' }}</think>",
    "step3": '<｜tool_calls_begin｜><steptml:invoke name="{{ name }}">',
    "dots": "<dots_function_call>",
    "longcat": '<longcat_tool_call>{"name": "{{ name }}", "arguments": {{ arguments }}}</longcat_tool_call>',
    "functiongemma": "<start_function_call>call:{{ name }}{ {{- key }}:<escape>{{ value }}<escape>}",
    "internlm": "<|action_start|><|plugin|>{{ call }}<|action_end|>",
    "plamo3": "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>",
    "granite_20b_fc": "<function_call> {{ call }}\n<function_response> {{ result }}",
    "xlam": "You are developed by Salesforce xLAM team. Make calls in a single JSON array.",
    "minimax_m3": "{%- set mark = ']<]minimax[>[' -%}{%- set begin = mark ~ '<tool_call>' -%}{{ arguments }}",
    "k2_horizon": "<ifm|tool_calls><ifm|tool_call>{{ name }}",
    "iquest_q1": "<iquest_tool_call>{{ name }}<arg_key>{{ key }}</arg_key>",
    "functionary_v32": "<|start_header_id|>assistant<|end_header_id|>>>>all\n{{ content }}",
    "command_r": 'Action:\n```json\n[{"tool_name": "{{ name }}", "parameters": {{ arguments }}}]``` `directly-answer`',
    "functionary": "<|python_tag|>{{ code }}<function={{ name }}>{{ arguments }}</function>",
    "muse_glimmer": "<|start|>assistant to={{ name }}<|message|><atem:function_calls>",
    "think": "{% if '</think>' in content %}{{ content.split('</think>')[-1] }}",
}


UNGUESSED = {"ernie45", "trinity"}  # their templates have nothing that only they have


def test_every_family_has_a_template_here() -> None:
    assert TEMPLATES.keys() | UNGUESSED == DIALECTS.keys()


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_dialect_is_guessed_from_what_only_its_templates_have(name: str) -> None:
    assert guess_dialect(TEMPLATES[name]) == name


@pytest.mark.parametrize(
    "template", ["", "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}", "<|im_start|>"]
)
def test_nothing_is_guessed_where_no_marker_is(template: str) -> None:
    assert guess_dialect(template) is None


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("hermes", "qwen3"),
        ("qwen25", "qwen3"),
        ("qwen3_xml", "qwen3_coder"),
        ("deepseekv3", "deepseek_v3"),
        ("deepseek-v3", "deepseek_v3"),
        ("deepseek-r1", "think"),
        ("gpt-oss", "gpt_oss"),
        ("openai", "gpt_oss"),
        ("glm45", "glm"),
        ("kimi_k2", "kimi_k2"),
        ("llama3_json", "llama3"),
        ("pythonic", "llama4"),
        ("phi4_mini_json", "phi4"),
        ("minimax-m2", "minimax_m2"),
        ("Mistral", "mistral"),
    ],
)
def test_the_names_of_other_engines_are_known(alias: str, name: str) -> None:
    assert find_dialect(alias) is DIALECTS[name]


def test_a_name_that_nobody_has_is_none() -> None:
    assert find_dialect("nobody") is None
    assert {find_dialect(name) is None for name in dialect_names()} == {False}


def test_the_prompt_says_whether_reasoning_is_begun() -> None:
    dialect = DIALECTS["qwen3"]
    assert dialect.begun("<|im_start|>assistant\n<think>\n")
    assert not dialect.begun("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not dialect.begun("<|im_start|>assistant\n")
    assert not DIALECTS["llama3"].begun("")


@pytest.mark.parametrize(
    "template",
    [
        "{{ '<tool_call>' + call.name }} arguments </tool_call>",
        "<tool_call>arguments</tool_call>",
        "Return calls within <tool_call></tool_call>, with name and arguments: <calls>[{...}]</calls>",
    ],
)
def test_a_foreign_template_is_not_taken_for_hermes_because_of_its_words(template: str) -> None:
    assert guess_dialect(template) is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("inkling", "internlm"),
        ("hy-v4", "hunyuan"),
        ("hf", "leave 'dialect' out"),
        ("gemma5", "gemma4"),
        ("nobody", ""),
    ],
)
def test_an_unknown_name_is_told_what_is_nearest(name: str, hint: str) -> None:
    suggestion = nearest(name)
    assert hint in suggestion
    assert bool(suggestion) == bool(hint)
