"""The families' ways to write a call with each argument between tags."""

import re
from dataclasses import replace
from typing import Any

from app.dialects.parameter_value import ANY
from app.dialects.parameters import Parameters, ValueEnd

_STRING = frozenset({"string"})


def dsml(section: str, mark: str = "｜DSML｜") -> Parameters:
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


QWEN_XML = Parameters(
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
SEED = replace(QWEN_XML, begin="<seed:tool_call>", end="</seed:tool_call>")
GLM = Parameters(
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
MINIMAX = Parameters(
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
_HUNYUAN_CALL = replace(
    GLM,
    begin="<tool_calls>",
    end="</tool_calls>",
    head_ends=("<tool_sep>",),
    head_is_read=True,
    name=re.compile(r"\s*([^\s<>{]+)\s*$"),
    value_ends=(ValueEnd("</arg_value>"),),
    head="<tool_call>{name}<tool_sep>\n",
    tail="</tool_call>",
    key_head="<arg_key>{name}</arg_key>\n<arg_value>",
)
STEP3 = replace(
    MINIMAX,
    begin="<｜tool_calls_begin｜>",
    end="<｜tool_calls_end｜>",
    call="<steptml:invoke",
    close="</steptml:invoke>",
    key="<steptml:parameter",
    value_ends=(ValueEnd("</steptml:parameter>"),),
    framed=False,
    fillers=("<｜tool_call_begin｜>", "<｜tool_call_end｜>", "function<｜tool_sep｜>", "<｜tool_sep｜>"),
    head='<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">\n',
    tail="</steptml:invoke><｜tool_call_end｜>",
    key_head='<steptml:parameter name="{name}">',
    key_tail="</steptml:parameter>\n",
)
MINICPM5 = Parameters(
    begin="<function",
    end="</function>",
    call="<function",
    head_ends=(">",),
    name=re.compile(r"""\s*name=["']([^"'<>]+)["']"""),
    close="</function>",
    key="<param",
    key_end=">",
    key_name=re.compile(r"""\s*name=["'](?P<name>[^"'<>]+)["']"""),
    value_ends=(ValueEnd("</param>"),),
    quotes=("<![CDATA[", "]]>"),
    head='<function name="{name}">',
    tail="</function>",
    key_head='<param name="{name}">',
    key_tail="</param>",
)
MUSE = replace(
    MINIMAX,
    begin="<atem:function_calls>",
    end="</atem:function_calls>",
    call="<atem:invoke",
    close="</atem:invoke>",
    key="<atem:parameter",
    value_ends=(ValueEnd("</atem:parameter>"),),
    framed=False,
    undeclared=ANY,
    head='<atem:invoke name="{name}">\n',
    tail="</atem:invoke>",
    key_head='<atem:parameter name="{name}">',
    key_tail="</atem:parameter>\n",
)
KIMI_XTML = Parameters(
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
K2_HORIZON = replace(
    GLM,
    begin="<ifm|tool_calls>",
    end="</ifm|tool_calls>",
    call="<ifm|tool_call>",
    head_ends=("<ifm|arg_key>", "</ifm|tool_call>"),
    close="</ifm|tool_call>",
    key="<ifm|arg_key>",
    key_end="<ifm|arg_value>",
    key_name=re.compile(
        r"\s*(?P<name>.*?)\s*</ifm\|arg_key>\s*(?:<ifm\|arg_type>\s*(?P<type>.*?)\s*</ifm\|arg_type>\s*)?$", re.DOTALL
    ),
    value_ends=(ValueEnd("</ifm|arg_value>"),),
    head="<ifm|tool_call>{name}\n",
    tail="</ifm|tool_call>",
    key_head="<ifm|arg_key>{name}</ifm|arg_key>\n<ifm|arg_value>",
    key_tail="</ifm|arg_value>\n",
)
IQUEST = replace(
    GLM,
    begin="<iquest_tool_call>",
    end="</iquest_tool_call>",
    call="<iquest_tool_call>",
    head_ends=("<arg_key>", "</iquest_tool_call>"),
    close="</iquest_tool_call>",
    value_ends=(ValueEnd("</arg_value>"),),
    head="<iquest_tool_call>{name}\n",
    tail="</iquest_tool_call>",
)


def hunyuan(suffix: str) -> Parameters:
    """`suffix`: of each tag, which differs between the published models."""

    def tagged(text: str) -> str:
        return re.sub(r"(</?(?:tool|arg)_\w+)>", rf"\1{suffix}>", text)

    names = ("begin", "end", "call", "close", "key", "key_end", "head", "tail", "key_head", "key_tail")
    texts: dict[str, Any] = {name: tagged(getattr(_HUNYUAN_CALL, name)) for name in names}
    return replace(
        _HUNYUAN_CALL,
        **texts,
        head_ends=(f"<tool_sep{suffix}>",),
        key_name=re.compile(rf"\s*(?P<name>.*?)\s*</arg_key{suffix}>\s*$", re.DOTALL),
        value_ends=(ValueEnd(f"</arg_value{suffix}>"),),
    )
