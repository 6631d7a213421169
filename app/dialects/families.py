"""The dialects of the families of models: a table, and so long."""

import re
from dataclasses import replace

from app.dialects.call_list import CallList
from app.dialects.dialect import BOTH, Dialect, Thought
from app.dialects.elements import Elements
from app.dialects.json_objects import JsonObjects
from app.dialects.named_objects import NamedObjects
from app.dialects.notation import Notation
from app.dialects.parts import Reasoning
from app.dialects.recipients import Recipients
from app.dialects.tagged_calls import (
    GLM,
    IQUEST,
    K2_HORIZON,
    KIMI_XTML,
    MINICPM5,
    MINIMAX,
    MUSE,
    QWEN_XML,
    SEED,
    STEP3,
    dsml,
    hunyuan,
)

_THINK = Thought("<think>", ("</think>",))
_REASONING = frozenset({Reasoning})
_NAME = re.compile(r"\s*([^\s<>{}]+)\s*")


_HERMES = JsonObjects(begins=("<tool_call>",), end="</tool_call>")


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


_TOOL_CALLS = (
    _list("<tool_calls>", end="</tool_calls>"),
    JsonObjects(begins=("<tool_calls>",), end="</tool_calls>", between="\n"),
)

_MISTRAL = Dialect(
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
)

DIALECTS: dict[str, Dialect] = {
    "qwen3": Dialect((_THINK,), (_HERMES,), trimmed=BOTH, special_tokens=True),
    "qwen3_coder": Dialect((_THINK,), (QWEN_XML, _HERMES), call_ends_thought=True, trimmed=BOTH, special_tokens=True),
    "glm": Dialect((_THINK,), (GLM,), trimmed=BOTH, special_tokens=True),
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
    "deepseek_v32": Dialect((_THINK,), (dsml("function_calls"),), trimmed=BOTH, special_tokens=True),
    "deepseek_v4": Dialect((_THINK,), (dsml("tool_calls"),), trimmed=BOTH, special_tokens=True),
    "deepseek_v41": Dialect((_THINK,), (dsml("calls", "｜DSML｜ "),), trimmed=BOTH, special_tokens=True),
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
        (KIMI_XTML,),
        hidden=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ),
        special_tokens=True,
    ),
    "mistral": _MISTRAL,
    "mistral_v11": replace(_MISTRAL, forms=_MISTRAL.forms[::-1]),  # both read both; they differ in what is enforced
    "llama3": Dialect(
        forms=(JsonObjects(begins=("<|python_tag|>", ""), between=";", arguments="parameters"),),
        hidden=("<|eom_id|>", "<|eot_id|>"),
        special_tokens=True,
    ),
    "llama4": Dialect(
        forms=(
            CallList(begins=("<|python_start|>", ""), end="<|python_end|>", inline=True),
            JsonObjects(begins=("<|python_end|>", '{"name": "', ""), between="\n", arguments="parameters"),
        ),
        hidden=("<|python_start|>", "<|python_end|>"),
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
    "minimax_m2": Dialect((_THINK,), (MINIMAX,), trimmed=BOTH, special_tokens=True),
    "granite4": Dialect((_THINK,), (_HERMES,), trimmed=BOTH, special_tokens=True),
    "seed_oss": Dialect((Thought("<seed:think>", ("</seed:think>",)),), (SEED,), trimmed=BOTH, special_tokens=True),
    "minimax_m3": Dialect(
        (Thought("<mm:think>", ("</mm:think>",), hidden_end=True),),
        (Elements("]<]minimax[>["),),
        trimmed=BOTH,
        special_tokens=True,
    ),
    "lfm2": Dialect(
        (_THINK,),
        (CallList(begins=("<|tool_call_start|>",), end="<|tool_call_end|>"),),
        trimmed=BOTH,
        special_tokens=True,
    ),
    "olmo3": Dialect(
        (_THINK,), (CallList(begins=("<function_calls>",), end="</function_calls>", lines=True),), trimmed=BOTH
    ),
    "cohere": Dialect(
        (Thought("<|START_THINKING|>", ("<|END_THINKING|>",)),),
        (
            JsonObjects(
                begins=("<|START_ACTION|>",),
                end="<|END_ACTION|>",
                listed=True,
                name="tool_name",
                arguments="parameters",
                number="tool_call_id",
            ),
        ),
        trimmed=BOTH,
        wrappers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        special_tokens=True,
    ),
    "command_r": Dialect(
        forms=(
            JsonObjects(
                begins=("Action: ```json", "Action:\n```json"),
                end="```",
                listed=True,
                name="tool_name",
                arguments="parameters",
                offered=True,  # it calls `directly-answer` to say that it will answer
            ),
        ),
        trimmed=BOTH,
    ),
    "apertus": Dialect(
        (Thought("<|inner_prefix|>", ("<|inner_suffix|>",)),),
        (JsonObjects(begins=("<|tools_prefix|>",), end="<|tools_suffix|>", listed=True, keyed=True),),
        special_tokens=True,
    ),
    "hunyuan": Dialect(
        (Thought("<think:opensource>", ("</think:opensource>",)), _THINK),
        (hunyuan(":opensource"), hunyuan("")),
        trimmed=BOTH,
        special_tokens=True,
    ),
    "hunyuan_a13b": Dialect((_THINK,), _TOOL_CALLS, trimmed=BOTH, wrappers=("<answer>", "</answer>")),
    "jamba": Dialect(forms=_TOOL_CALLS, trimmed=BOTH, special_tokens=True),
    "minimax_m1": Dialect((_THINK,), _TOOL_CALLS[::-1], trimmed=BOTH),
    "apriel": Dialect(
        (
            Thought("Here are my reasoning steps:", ("[BEGIN FINAL RESPONSE]",)),
            Thought("<thinking>", ("</thinking>",)),
        ),
        _TOOL_CALLS,
        call_ends_thought=True,
        trimmed=BOTH,
        wrappers=("[END FINAL RESPONSE]", "<|end|>"),
        special_tokens=True,
    ),
    "solar": Dialect(
        (Thought("<|think|>", ("<|end|>",)),),
        (
            NamedObjects(
                begin="<|tool_calls|>",
                section_end="<|calls|>",
                call="<|tool_call:begin|>",
                end="<|tool_call:end|>",
                separators=("<|tool_call:args|>",),
                name=re.compile(r"[^<]*<\|tool_call:name\|>(\S+)"),
                head="{number}<|tool_call:name|>{name}<|tool_call:args|>",
                number="[a-z0-9]{10}",
            ),
        ),
        trimmed=BOTH,
        wrappers=("<|begin|>assistant", "<|content|>", "<|end|>", "<|flush|>"),
        special_tokens=True,
    ),
    "gigachat3": Dialect(
        forms=(JsonObjects(begins=("<|function_call|>", "function call<|role_sep|>")),),
        trimmed=BOTH,
        hidden=("<|message_sep|>",),
        special_tokens=True,
    ),
    "gigachat35": Dialect((_THINK,), (dsml("tool_calls", "｜GCML｜"),), trimmed=BOTH, hidden=("<|message_sep|>",)),
    "minicpm5": Dialect((_THINK,), (MINICPM5,), trimmed=BOTH, special_tokens=True),
    "step3": Dialect((_THINK,), (STEP3,), trimmed=BOTH, special_tokens=True),
    "dots": Dialect(
        (_THINK,),
        (
            replace(MINIMAX, begin="<dots_function_call>", end="</dots_function_call>"),
            JsonObjects(begins=("<dots_function_call>",), end="</dots_function_call>"),
        ),
        trimmed=BOTH,
        special_tokens=True,
    ),
    "longcat": Dialect(
        (Thought("<longcat_think>", ("</longcat_think>",)),),
        (JsonObjects(begins=("<longcat_tool_call>",), end="</longcat_tool_call>"),),
        trimmed=BOTH,
        special_tokens=True,
    ),
    "functiongemma": Dialect(
        forms=(Notation("<start_function_call>", "<end_function_call>", "<escape>", typed=True),), special_tokens=True
    ),
    "internlm": Dialect(
        (_THINK,),
        (
            JsonObjects(
                begins=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
                end="<|action_end|>",
                arguments="parameters",
            ),
        ),
        trimmed=BOTH,
        special_tokens=True,
    ),
    "granite_20b_fc": Dialect(forms=(JsonObjects(begins=("<function_call>",)),), trimmed=BOTH, special_tokens=True),
    "xlam": Dialect((_THINK,), (_list("[TOOL_CALLS]", ""), _HERMES), trimmed=BOTH, special_tokens=True),
    "ernie45": Dialect(
        (_THINK,), (_HERMES,), trimmed=BOTH, wrappers=("<response>", "</response>"), special_tokens=True
    ),
    "trinity": Dialect((_THINK,), (_HERMES,), call_ends_thought=True, trimmed=BOTH, special_tokens=True),
    "plamo3": Dialect(
        (Thought("<|plamo:begin_think:plamo|>", ("<|plamo:end_think:plamo|>",)),),
        (
            NamedObjects(
                begin="<|plamo:begin_tool_requests:plamo|>",
                section_end="<|plamo:end_tool_requests:plamo|>",
                call="<|plamo:begin_tool_request:plamo|>",
                end="<|plamo:end_tool_request:plamo|>",
                separators=("<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",),
                name=re.compile(r"\s*<\|plamo:begin_tool_name:plamo\|>\s*(\S+?)\s*<\|plamo:end_tool_name:plamo\|>\s*"),
                head="<|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
                "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",
                tail="<|plamo:end_tool_arguments:plamo|>",
            ),
        ),
        call_ends_thought=True,
        trimmed=BOTH,
        hidden=("<|plamo:tag|>",),
        special_tokens=True,
    ),
    "k2_horizon": Dialect(
        tuple(Thought(f"<ifm|{name}>", (f"</ifm|{name}>",)) for name in ("think", "think_fast", "think_faster")),
        (K2_HORIZON,),
        trimmed=BOTH,
        special_tokens=True,
    ),
    "iquest_q1": Dialect((_THINK,), (IQUEST,), trimmed=BOTH, special_tokens=True),
    "functionary_v32": Dialect(forms=(Recipients(">>>"),), trimmed=BOTH, hidden=("<|eot_id|>",)),
    "functionary": Dialect(
        forms=(NamedObjects(begin="<function=", separators=(">",), end="</function>", name=_NAME, head="{name}>"),),
        hidden=("<|eom_id|>", "<|eot_id|>"),
        special_tokens=True,
    ),
    "muse_glimmer": Dialect(
        (Thought("to=self<|message|>", ("<|eom|>", "<|eot|>")),),
        (MUSE,),
        trimmed=BOTH,
        wrappers=("<|start|>assistant", "to=user<|message|>", "<|eom|>", "<|eot|>"),
        addressed="to={}<|message|>",
        special_tokens=True,
    ),
    "think": Dialect((_THINK,), trimmed=BOTH),
}


def reasoning_only(begin: str, end: str) -> Dialect:
    """The dialect of a model whose markers of reasoning are all that is known; all other text is content."""
    return Dialect((Thought(begin, (end,)),))
