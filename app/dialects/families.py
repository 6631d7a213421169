"""The dialects of the families of models."""

import re
from dataclasses import replace

from app.dialects.call_list import CallList
from app.dialects.dialect import BOTH, Dialect, Thought
from app.dialects.json_objects import JsonObjects
from app.dialects.named_objects import NamedObjects
from app.dialects.notation import Notation
from app.dialects.parameters import Parameters, ValueEnd
from app.dialects.parts import Reasoning

_THINK = Thought("<think>", ("</think>",))
_REASONING = frozenset({Reasoning})
_STRING = frozenset({"string"})


def _dsml(section: str, pad: str = "") -> Parameters:
    mark = "｜DSML｜" + pad
    return Parameters(
        begin=f"<{mark}{section}>",
        end=f"</{mark}{section}>",
        call=f"<{mark}invoke",
        head_ends=(">",),
        name=re.compile(r'\s*name="([^"]*)"'),
        close=f"</{mark}invoke>",
        key=f"<{mark}parameter",
        key_end=">",
        key_name=re.compile(r'\s*name="(?P<name>[^"]*)"(?:\s+string="(?P<type>true|false)")?'),
        value_ends=(ValueEnd(f"</{mark}parameter>"),),
        head=f'<{mark}invoke name="{{name}}">\n',
        tail=f"</{mark}invoke>",
        key_head=f'<{mark}parameter name="{{name}}" string="{{string}}">',
        key_tail=f"</{mark}parameter>\n",
    )


_HERMES = JsonObjects(begins=("<tool_call>",), end="</tool_call>")
_QWEN_XML = Parameters(
    begin="<tool_call>",
    end="</tool_call>",
    call="<function=",
    head_ends=(">",),
    name=re.compile(r"\s*([^\s<>]+)\s*$"),
    close="</function>",
    key="<parameter=",
    key_end=">",
    key_name=re.compile(r"(?P<name>.+)$"),
    value_ends=(
        ValueEnd("</parameter>", inline=("<parameter=", "</function>", "</tool_call>", "</seed:tool_call>")),
        ValueEnd("<parameter="),
        ValueEnd("</function>", inline=("</tool_call>", "</seed:tool_call>", "<function=")),
    ),
    framed=True,
    undeclared=_STRING,
    bare=True,
    head="<function={name}>\n",
    tail="</function>",
    key_head="<parameter={name}>\n",
    key_tail="\n</parameter>\n",
)
_SEED = replace(_QWEN_XML, begin="<seed:tool_call>", end="</seed:tool_call>")
_GLM = Parameters(
    begin="<tool_call>",
    end="</tool_call>",
    call="<tool_call>",
    head_ends=("\n", "<arg_key>", "</tool_call>", "<tool_call>"),
    head_is_read=False,
    name=re.compile(r"\s*([^\s<>{]+)\s*$"),
    close="</tool_call>",
    key="<arg_key>",
    key_end="<arg_value>",
    key_name=re.compile(r"\s*(?P<name>.*?)\s*</arg_key>\s*$", re.DOTALL),
    value_ends=(ValueEnd("</arg_value>"), ValueEnd("</tool_call>", follow=("<tool_call>",))),
    head="<tool_call>{name}\n",
    tail="</tool_call>",
    key_head="<arg_key>{name}</arg_key>\n<arg_value>",
    key_tail="</arg_value>\n",
)
_MINIMAX = Parameters(
    begin="<minimax:tool_call>",
    end="</minimax:tool_call>",
    call="<invoke",
    head_ends=(">",),
    name=re.compile(r'\s*name="?([^">]*)"?'),
    close="</invoke>",
    key="<parameter",
    key_end=">",
    key_name=re.compile(r'\s*name="?(?P<name>[^">]*)"?'),
    value_ends=(
        ValueEnd("</parameter>", inline=("<parameter", "</invoke>", "</minimax:tool_call>")),
        ValueEnd("</invoke>", follow=("<invoke", "</minimax:tool_call>")),
    ),
    framed=True,
    undeclared=_STRING,
    head='<invoke name="{name}">\n',
    tail="</invoke>",
    key_head='<parameter name="{name}">',
    key_tail="</parameter>\n",
)
_KIMI_XTML = Parameters(
    begin="<|open|>tools<|sep|>",
    end="<|close|>tools<|sep|>",
    call="<|open|>call",
    head_ends=("<|sep|>",),
    name=re.compile(r'\s*tool="([^"]*)"'),
    close="<|close|>call<|sep|>",
    key="<|open|>argument",
    key_end="<|sep|>",
    key_name=re.compile(r'\s*key="(?P<name>[^"]*)"(?:\s+type="(?P<type>[^"]*)")?'),
    value_ends=(ValueEnd("<|close|>argument<|sep|>", follow=("<|open|>", "<|close|>call")),),
    entities=True,
    head='<|open|>call tool="{name}"<|sep|>',
    tail="<|close|>call<|sep|>",
    key_head='<|open|>argument key="{name}" type="{type}"<|sep|>',
    key_tail="<|close|>argument<|sep|>",
)


def _deepseek_v3(call_name: str, separator: str, head: str, tail: str = "") -> NamedObjects:
    return NamedObjects(
        begin="<｜tool▁calls▁begin｜>",
        section_end="<｜tool▁calls▁end｜>",
        call="<｜tool▁call▁begin｜>",
        end="<｜tool▁call▁end｜>",
        separators=(separator,),
        name=re.compile(call_name),
        head=head,
        tail=tail,
    )


def _list(*begins: str, end: str = "") -> JsonObjects:
    return JsonObjects(begins=begins, end=end, listed=True)


DIALECTS: dict[str, Dialect] = {
    "qwen3": Dialect((_THINK,), (_HERMES,), trimmed=BOTH, special_tokens=True),
    "qwen3_coder": Dialect((_THINK,), (_QWEN_XML, _HERMES), call_ends_thought=True, trimmed=BOTH, special_tokens=True),
    "glm": Dialect((_THINK,), (_GLM,), trimmed=BOTH, special_tokens=True),
    "deepseek_v3": Dialect(
        (_THINK,),
        (
            _deepseek_v3(
                r"\s*(?:\w+<｜tool▁sep｜>)?\s*(\S+)\s*", "\n```json", "function<｜tool▁sep｜>{name}\n```json\n", "\n```"
            ),
        ),
        trimmed=BOTH,
        special_tokens=True,
    ),
    "deepseek_v31": Dialect(
        (_THINK,),
        (_deepseek_v3(r"\s*(\S+)\s*", "<｜tool▁sep｜>", "{name}<｜tool▁sep｜>"),),
        trimmed=BOTH,
        special_tokens=True,
    ),
    "deepseek_v32": Dialect((_THINK,), (_dsml("function_calls"),), trimmed=BOTH, special_tokens=True),
    "deepseek_v4": Dialect((_THINK,), (_dsml("tool_calls"),), trimmed=BOTH, special_tokens=True),
    "deepseek_v41": Dialect((_THINK,), (_dsml("calls", " "),), trimmed=BOTH, special_tokens=True),
    "kimi_k2": Dialect(
        (_THINK,),
        (
            NamedObjects(
                begin="<|tool_calls_section_begin|>",
                section_end="<|tool_calls_section_end|>",
                call="<|tool_call_begin|>",
                end="<|tool_call_end|>",
                separators=("<|tool_call_argument_begin|>",),
                name=re.compile(r"\s*(?:functions\.)?(\S+?)(?::\d+)?\s*"),
                head="functions.{name}:{number}<|tool_call_argument_begin|>",
            ),
        ),
        call_ends_thought=True,
        ids="numbered",
        special_tokens=True,
    ),
    "kimi_k3": Dialect(
        (Thought("<|open|>think<|sep|>", ("<|close|>think<|sep|>", "<|open|>response<|sep|>")),),
        (_KIMI_XTML,),
        hidden=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ),
        special_tokens=True,
    ),
    "mistral": Dialect(
        (Thought("[THINK]", ("[/THINK]",)), _THINK),
        (
            _list("[TOOL_CALLS]"),
            NamedObjects(
                begin="[TOOL_CALLS]",
                separators=("[ARGS]", "{"),
                name=re.compile(r"\s*([^\s\[\]{}]+?)\s*(?:\[CALL_ID\][^\[]*)?"),
                head="{name}[ARGS]",
            ),
        ),
        trimmed=_REASONING,
        hidden=("</s>",),
        ids="nine",
        special_tokens=True,
    ),
    "llama3": Dialect(
        forms=(JsonObjects(begins=("<|python_tag|>", ""), between=";", arguments="parameters"),),
        hidden=("<|eom_id|>", "<|eot_id|>"),
        special_tokens=True,
    ),
    "llama4": Dialect(
        forms=(CallList(begins=("<|python_start|>", ""), end="<|python_end|>"),),
        hidden=("<|python_end|>",),
        special_tokens=True,
    ),
    "gemma4": Dialect(
        (Thought("<|channel>thought", ("<channel|>",), hidden_end=True),),
        (Notation("<|tool_call>", "<tool_call|>", '<|"|>'),),
        trimmed=_REASONING,
        special_tokens=True,
    ),
    "gpt_oss": Dialect(channels=True, special_tokens=True),
    "granite": Dialect((_THINK,), (_list("<|tool_call|>", "<tool_call>"), _HERMES), trimmed=BOTH, special_tokens=True),
    "phi4": Dialect(
        (_THINK,), (_list("<|tool_call|>", "functools", end="<|/tool_call|>"),), trimmed=BOTH, special_tokens=True
    ),
    "nemotron": Dialect((_THINK,), (_list("<TOOLCALL>", end="</TOOLCALL>"),), trimmed=BOTH),
    "minimax_m2": Dialect((_THINK,), (_MINIMAX,), trimmed=BOTH, special_tokens=True),
    "granite4": Dialect((_THINK,), (_HERMES,), trimmed=BOTH, special_tokens=True),
    "seed_oss": Dialect((Thought("<seed:think>", ("</seed:think>",)),), (_SEED,), trimmed=BOTH, special_tokens=True),
    "think": Dialect((_THINK,), trimmed=BOTH),
}


def reasoning_only(begin: str, end: str) -> Dialect:
    """The dialect of a model whose markers of reasoning are all that is known; all other text is content."""
    return Dialect((Thought(begin, (end,)),))
