"""Dialects by name, also by the names of vLLM's and SGLang's parsers, and guessed from a chat template."""

from app.dialects.dialect import Dialect
from app.dialects.families import DIALECTS

# The other engines' names, of parsers for calls or for reasoning; `-` and `_` are the same.
_ALIASES = {
    "qwen3": ("hermes", "qwen3_json", "qwen", "qwen25", "qwen3_thinking", "interns1", "xlam_qwen"),
    "qwen3_coder": ("qwen3_xml", "qwen3_5", "nemotron_v3", "nano_v3", "step3p5", "mimo"),
    "glm": ("glm45", "glm47", "glm5"),
    "deepseek_v3": ("deepseekv3",),
    "deepseek_v31": ("deepseekv31",),
    "deepseek_v32": ("deepseekv32",),
    "deepseek_v4": ("deepseekv4",),
    "deepseek_v41": ("deepseekv41",),
    "kimi_k2": ("kimi",),
    "kimi_k3": ("kimik3",),
    "mistral": ("magistral",),
    "llama3": ("llama3_json", "llama4_json"),
    "llama4": ("llama4_pythonic", "pythonic"),
    "gpt_oss": ("openai", "openai_gptoss", "gptoss", "harmony"),
    "granite": ("granite3",),
    "granite4": ("granite_4",),
    "phi4": ("phi4_mini_json",),
    "minimax_m2": ("minimax",),
    "seed_oss": ("seed",),
    "think": ("deepseek_r1", "holo2", "ernie45"),
}
_BY_NAME = {alias: name for name, aliases in _ALIASES.items() for alias in aliases} | {name: name for name in DIALECTS}

# The first row counts whose texts are all in the template.
_TEMPLATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("gpt_oss", ("<|channel|>", "<|message|>")),
    ("deepseek_v41", ("｜DSML｜ ", "calls>")),
    ("deepseek_v32", ("｜DSML｜", "function_calls>")),
    ("deepseek_v4", ("｜DSML｜", "tool_calls>")),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("kimi_k3", ("<|open|>", "<|sep|>")),
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
    ("qwen3", ("<tool_call>", "arguments")),
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
    known = own_name(name)
    return None if known is None else DIALECTS[known]


def guess_dialect(template: str) -> str | None:
    """The name of the dialect that belongs to a chat template (Jinja); None: unknown."""
    return next((name for name, marks in _TEMPLATES if all(mark in template for mark in marks)), None)
