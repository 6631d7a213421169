"""Read-back finds the templates whose calls the guessed dialect understands, and those whose it doesn't."""

from pathlib import Path

import pytest

from ops.templates.readback import BROKEN, CASES, ReadBack, figures, read_back

HEAD = """{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or "" }}{% if m.tool_calls %}BEGIN{% for call in m.tool_calls %}{% set f = call.function %}"""
TAIL = """{% endfor %}END{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
HERMES = """
<tool_call>
{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}
</tool_call>"""
FOREIGN = """<tool_call>{{ f.name }} with arguments {{ f.arguments | tojson }}</tool_call>"""


# By dialect: what stands before calls, one call, what is between them, and behind them.
JSON = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
PYTHON = """{% macro value(v) %}{{ v | tojson if v is mapping or v is string else v }}{% endmacro %}"""
NAMED = (
    "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ value(v) }}{{ ', ' if not loop.last }}{% endfor %})"
)
PAIRS = """{% for k, v in f.arguments.items() %}<KEY>{{ k }}</KEY>
<VALUE>{{ v if v is string else v | tojson }}</VALUE>
{% endfor %}"""
XML = """{% macro parts(v) %}{% if v is mapping %}{% for k, w in v.items() %}{{ one(k, w) }}{% endfor %}
{%- elif v is sequence and v is not string %}{% for w in v %}{{ one("item", w) }}{% endfor %}
{%- else %}{{ v if v is string else v | tojson }}{% endif %}{% endmacro %}
{%- macro one(k, v) %}]<]minimax[>[<{{ k }}>{{ parts(v) }}]<]minimax[>[</{{ k }}>{% endmacro %}"""


def invoked(prefix: str, parameter: str = "parameter", text: str = "") -> str:
    """A call with its arguments between tags."""
    value, tag = "{{ v if v is string else v | tojson }}", prefix + parameter
    argument_text = f'<{tag} name="{{{{ k }}}}"{text}>{value}</{tag}>'
    return f"{{% for k, v in f.arguments.items() %}}{argument_text}\n{{% endfor %}}"


PAIRED = PAIRS.replace("KEY", "arg_key").replace("VALUE", "arg_value")
WRITING = {
    "lfm2": ("<|tool_call_start|>[", PYTHON + NAMED, ", ", "]<|tool_call_end|>"),
    "olmo3": ("{# <functions> #}<function_calls>", PYTHON + NAMED, "\n", "</function_calls>"),
    "cohere": ("<|START_ACTION|>[\n", JSON.replace('"name"', '"tool_call_id": "{{ loop.index0 }}", "tool_name"')
               .replace("arguments\"", "parameters\"", 1), ",\n", "\n]<|END_ACTION|>"),
    "command_r": ("{# directly-answer #}Action:\n```json\n[", JSON.replace('"name"', '"tool_name"')
                  .replace("arguments\"", "parameters\"", 1), ",\n", "\n]```"),
    "apertus": ("<|tools_prefix|>[", '{"{{ f.name }}": {{ f.arguments | tojson }}}', ", ", "]<|tools_suffix|>"),
    "hunyuan": ("<tool_calls>\n", f"<tool_call>{{{{ f.name }}}}<tool_sep>\n{PAIRED}</tool_call>", "\n",
                "\n</tool_calls>"),
    "hunyuan_a13b": ("<tool_calls>[", JSON, ", ", "]</tool_calls>{# <|startoftext|> #}"),
    "jamba": ("{# <|bom|> #}<tool_calls>[\n", JSON, ",\n", "\n]</tool_calls>"),
    "minimax_m1": ("{# <beginning_of_sentence> #}<tool_calls>\n", JSON, "\n", "\n</tool_calls>"),
    "apriel": ("{# <available_tools> #}\n<tool_calls>[", JSON, ", ", "]</tool_calls>"),
    "solar": ("<|tool_calls|>", "<|tool_call:begin|>{{ call.id }}<|tool_call:name|>{{ f.name }}<|tool_call:args|>"
              "{{ f.arguments | tojson }}<|tool_call:end|>", "", "<|calls|>"),
    "gigachat3": ("", "{# function call<|role_sep|> #}<|function_call|>" + JSON, "\n", "<|message_sep|>"),
    "minicpm5": ("", f'<function name="{{{{ f.name }}}}">{invoked("", "param")}</function>', "\n", ""),
    "step3": ("<｜tool_calls_begin｜>\n",
              '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{{ f.name }}">'
              f'{invoked("steptml:")}</steptml:invoke><｜tool_call_end｜>', "\n", "\n<｜tool_calls_end｜>"),
    "dots": ("<dots_function_call>\n", f'<invoke name="{{{{ f.name }}}}">{invoked("")}</invoke>', "\n",
             "\n</dots_function_call>"),
    "longcat": ("", f"<longcat_tool_call>{JSON}</longcat_tool_call>", "\n", ""),
    "internlm": ("", "<|action_start|><|plugin|>\n" + JSON.replace("arguments\"", "parameters\"", 1) + "<|action_end|>",
                 "\n", ""),
    "granite_20b_fc": ("{# <function_response> #}", "<function_call> " + JSON, "\n", ""),
    "plamo3": ("<|plamo:begin_tool_requests:plamo|>", "<|plamo:begin_tool_request:plamo|>"
               "<|plamo:begin_tool_name:plamo|>{{ f.name }}<|plamo:end_tool_name:plamo|>"
               "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json"
               "<|plamo:msg|>{{ f.arguments | tojson }}<|plamo:end_tool_arguments:plamo|>"
               "<|plamo:end_tool_request:plamo|>",
               "", "<|plamo:end_tool_requests:plamo|>"),
    "gigachat35": ("<｜GCML｜tool_calls>\n", '<｜GCML｜invoke name="{{ f.name }}">'
                   + invoked("｜GCML｜", text=' string="{{ \'true\' if v is string else \'false\' }}"')
                   + "</｜GCML｜invoke>", "\n", "\n</｜GCML｜tool_calls>"),
    "k2_horizon": ("<ifm|tool_calls>\n", "<ifm|tool_call>{{ f.name }}\n" + PAIRS.replace("KEY", "ifm|arg_key")
                   .replace("VALUE", "ifm|arg_value") + "</ifm|tool_call>", "\n", "\n</ifm|tool_calls>"),
    "iquest_q1": ("", f"<iquest_tool_call>{{{{ f.name }}}}\n{PAIRED}</iquest_tool_call>", "\n", ""),
    "functionary": ("{# <|python_tag|> #}", "<function={{ f.name }}>{{ f.arguments | tojson }}</function>", "",
                    "<|eom_id|>"),
    "muse_glimmer": ("{# <|message|> #}", '<atem:function_calls>\n<atem:invoke name="{{ f.name }}">\n'
                     f'{invoked("atem:")}</atem:invoke>\n</atem:function_calls>', "\n", ""),
    "minimax_m3": (XML + "]<]minimax[>[<tool_call>\n", ']<]minimax[>[<invoke name="{{ f.name }}">'
                   "{{ parts(f.arguments) }}]<]minimax[>[</invoke>", "\n", "\n]<]minimax[>[</tool_call>"),
}  # fmt: skip


def made(folder: Path, call: str, between: str = "", begin: str = "", end: str = "") -> ReadBack:
    path = folder / "made.jinja"
    loop = f"{call}{{{{ {between!r} if not loop.last }}}}"
    path.write_text(HEAD.replace("BEGIN", begin) + loop + TAIL.replace("END", end))
    return read_back(path)


@pytest.mark.parametrize("name", WRITING)
def test_what_a_family_writes_is_read_back(tmp_path: Path, name: str) -> None:
    begin, call, between, end = WRITING[name]
    readback = made(tmp_path, call, between, begin, end)
    assert readback.dialect == name
    assert (readback.wrong, {*CASES} - {*readback.written}) == ([], set()), readback.written


def test_a_template_that_writes_as_its_dialect_reads_is_right(tmp_path: Path) -> None:
    readback = made(tmp_path, HERMES)
    assert readback.dialect == "qwen3"
    assert readback.right
    assert readback.written.keys() == CASES.keys()
    assert "</tool_call>" in readback.written["two"]


def test_a_template_without_a_dialect_is_wrong(tmp_path: Path) -> None:
    """The template says "<tool_call>" and "arguments", and writes neither as Hermes does."""
    readback = made(tmp_path, FOREIGN)
    assert readback.dialect is None
    assert readback.wrong == [*readback.written]


def test_a_template_that_writes_no_calls_is_neither(tmp_path: Path) -> None:
    readback = made(tmp_path, "")
    assert not readback.written
    assert not readback.wrong
    assert not readback.right


@pytest.mark.parametrize(
    ("found", "wrong", "families"),
    [
        ([ReadBack("a", "qwen3", {"one": "…"}), ReadBack("b", "qwen3", {"one": "…"})], 0, 1),
        ([ReadBack("a", "qwen3", {"one": "…"}), ReadBack("b", "qwen3", {"one": "…"}, ["one"])], 1, 0),
        ([ReadBack("a", "qwen3", {"one": "…"}), ReadBack("b", None, {"one": "…"}, ["one"])], 1, 1),
        ([ReadBack("a", "qwen3"), ReadBack("b", None)], 0, 0),
        ([ReadBack("a", "qwen3", {"one": "…"}), ReadBack(min(BROKEN), "qwen3", {"one": "…"}, ["one"])], 0, 1),
    ],
)
def test_a_family_counts_once_and_only_if_none_of_its_templates_is_wrong(
    found: list[ReadBack], wrong: int, families: int
) -> None:
    values = figures(found)
    assert (values["readback_wrong"], values["families_with_tools"]) == (wrong, families)
