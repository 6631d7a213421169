"""Dialects by name, also by the names of vLLM's and SGLang's parsers, and guessed from a chat template."""

import re
from difflib import get_close_matches

from app.dialects.dialect import Dialect
from app.dialects.families import DIALECTS

# The other engines' names, of parsers for calls or for reasoning; `-` and `_` are the same.
_ALIASES = {
    "qwen3": ("hermes", "qwen3_json", "qwen", "qwen25", "qwen3_thinking", "xlam_qwen"),
    "qwen3_coder": ("qwen3_xml", "qwen3_5", "nemotron_v3", "nemotron_3", "nano_v3", "step3p5", "mimo", "nanbeige"),
    "glm": ("glm45", "glm47", "glm5", "ling3", "spark25", "poolside_v1"),
    "deepseek_v3": ("deepseekv3",),
    "deepseek_v31": ("deepseekv31",),
    "deepseek_v32": ("deepseekv32",),
    "deepseek_v4": ("deepseekv4",),
    "deepseek_v41": ("deepseekv41",),
    "kimi_k2": ("kimi",),
    "kimi_k3": ("kimik3",),
    "mistral_v11": ("magistral",),
    "llama3": ("llama3_json", "llama4_json"),
    "llama4": ("llama4_pythonic", "pythonic"),
    "gpt_oss": ("openai", "openai_gptoss", "gptoss", "harmony"),
    "granite": ("granite3",),
    "granite4": ("granite_4",),
    "phi4": ("phi4_mini_json",),
    "minimax_m2": ("minimax", "minimax_append_think", "minimax_m2_append_think"),
    "seed_oss": ("seed",),
    "think": ("deepseek_r1", "holo2", "granite_thinking_parser", "minicpmv"),
    "cohere": ("cohere_command3", "cohere_command4"),
    "apertus": ("apertus2509",),
    "hunyuan": ("hy_v3",),
    "internlm": ("internlm2", "interns1"),
    "muse_glimmer": ("muse",),
}
_BY_NAME = {alias: name for name, aliases in _ALIASES.items() for alias in aliases} | {name: name for name in DIALECTS}

_BY_FILES = "the nearest is the one that is guessed from the model's files: leave 'dialect' out"
# Other engines' names whose format is in the model's files, or isn't certain, and what is nearest.
_REFUSED = {
    "beam": _BY_FILES,
    "hf": _BY_FILES,
    "response_template": _BY_FILES,
    "hy_v4": "the nearest is hunyuan, which Hunyuan 3 writes",
    "inkling": "the nearest is internlm, whose calls are JSON, too, but not marked in the same way",
}

_HERMES_CALL = re.compile(r"""<tool_call>[\s\\n"'~+{}-]{0,64}?\{\\*["']""")  # JSON, as templates write it

# The first row counts whose texts and patterns are all in the template.
_TEMPLATES: tuple[tuple[str, tuple[str | re.Pattern[str], ...]], ...] = (
    ("gpt_oss", ("<|channel|>", "<|message|>")),
    ("lfm2", ("<|tool_call_start|>", "<|tool_call_end|>")),
    ("lfm2", ("<|tool_list_start|>", "<|tool_response_start|>")),
    ("lfm2", ("List of tools: [", "<|im_start|>")),
    ("olmo3", ("<function_calls>", "</function_calls>", "<functions>")),
    ("cohere", ("<|START_ACTION|>", "tool_name")),
    ("command_r", ("Action:", "tool_name", "directly-answer")),
    ("apertus", ("<|tools_prefix|>", "<|tools_suffix|>")),
    ("hunyuan", ("<tool_calls{}>", "<tool_sep{}>")),
    ("hunyuan", ("<tool_calls>", "<tool_sep>")),
    ("solar", ("<|tool_call:begin|>", "<|tool_call:args|>")),
    ("apriel", ("<tool_calls>", "<available_tools>")),
    ("minimax_m1", ("<tool_calls>", "<beginning_of_sentence>")),
    ("jamba", ("<tool_calls>", "<|bom|>")),
    ("hunyuan_a13b", ("<tool_calls>", "<|startoftext|>")),
    ("minimax_m3", ("]<]minimax[>[", "<tool_call>")),
    ("k2_horizon", ("<ifm|tool_call",)),
    ("iquest_q1", ("<iquest_tool_call>",)),
    ("granite_20b_fc", ("<function_call>", "<function_response>")),
    ("xlam", ("Salesforce xLAM", "single JSON array")),
    ("functionary_v32", (">>>all", "<|start_header_id|>")),
    ("gigachat35", ("｜GCML｜", "tool_calls>")),
    ("gigachat3", ("<|role_sep|>", "function call")),
    ("minicpm5", ('<function name="', '<param name="')),
    ("step3", ("<｜tool_calls_begin｜>", "steptml:invoke")),
    ("dots", ("<dots_function_call>",)),
    ("longcat", ("<longcat_tool_call>",)),
    ("functiongemma", ("<start_function_call>", "<escape>")),
    ("internlm", ("<|action_start|>", "<|plugin|>")),
    ("plamo3", ("<|plamo:begin_tool_request",)),
    ("muse_glimmer", ("<atem:function_calls>", "<|message|>")),
    ("functionary", ("<function=", "<|python_tag|>", "</function>")),
    ("phi4", ("functools[",)),
    ("deepseek_v41", ("｜DSML｜ ", "calls>")),
    ("deepseek_v32", ("｜DSML｜", "function_calls>")),
    ("deepseek_v4", ("｜DSML｜", "tool_calls>")),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("kimi_k3", ("<|open|>", "<|sep|>")),
    ("mistral_v11", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("gemma4", ("<|tool_call>", '<|"|>')),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("seed_oss", ("<seed:tool_call>",)),
    ("glm", ("<tool_call>", "<arg_key>")),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("nemotron", ("<TOOLCALL>",)),
    ("phi4", ("<|tool|>", "<|/tool|>")),
    ("granite", ("<|start_of_role|>", "<|tool_call|>")),
    ("granite4", ("<|start_of_role|>", "<tool_call>")),
    ("qwen3", (_HERMES_CALL, "arguments")),
    ("llama4", ("<|header_start|>",)),
    ("llama3", ("<|start_header_id|>", '"parameters"')),
    ("think", ("</think>",)),
)


def dialect_names() -> list[str]:
    """All that `find_dialect` knows, in alphabetical order."""
    return sorted(_BY_NAME)


def own_name(name: str) -> str | None:
    """Our name of a dialect, which `name` may call as another engine does; None: unknown."""
    return _BY_NAME.get(name.lower().replace("-", "_"))


def find_dialect(name: str) -> Dialect | None:
    dialect_name = own_name(name)
    return None if dialect_name is None else DIALECTS[dialect_name]


def nearest(name: str) -> str:
    """A sentence on what is nearest to a name that `find_dialect` doesn't know; "": nothing is near."""
    name = name.lower().replace("-", "_")
    near = get_close_matches(name, _BY_NAME, 1)
    return _REFUSED.get(name) or (f"the nearest is {near[0]}" if near else "")


def guess_dialect(template: str) -> str | None:
    """The name of the dialect that belongs to a chat template (Jinja); None: unknown."""
    return next((name for name, marks in _TEMPLATES if all(_is_in(template, mark) for mark in marks)), None)


def _is_in(template: str, mark: str | re.Pattern[str]) -> bool:
    return mark in template if isinstance(mark, str) else mark.search(template) is not None
