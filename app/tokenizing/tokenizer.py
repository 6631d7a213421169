"""Text ↔ token ids, and chat messages → prompt text, of one model directory.

No torch, and no transformers but with `tokenizer_mode: engine`.
"""

import json
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import jinja2
import tokenizers

from app.errors import RequestError, SettingsError, XylemError
from app.tokenizing.chat_template import compile_template
from app.tokenizing.own_template import OwnTemplate
from app.tokenizing.segments import Segments, independent

TokenizerMode = Literal["file", "engine"]
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TOKEN_CHARS = 8  # tokens of ordinary text have fewer
_PIECE = 2**15  # characters
_MARGIN = 64  # tokens at the end of a text that may be others once it is cut there
_UNSET = {"tools": None, "documents": None}  # as Hugging Face's renderer has them
_TOOLS = ("tools", "xml_tools")  # names that templates have for a request's tools
_SHOWN = 500  # characters of a template's error, which may quote a message


class Tokenizer:
    """Thread-safe after construction."""

    def __init__(self, model_dir: Path, template_file: Path | None = None, mode: TokenizerMode = "file") -> None:
        """Raises: SettingsError when the directory or the template can't be read."""
        config = _read_json(model_dir / "tokenizer_config.json")
        if mode == "engine":
            from app.tokenizing.transformers_tokenizer import converted

            self.raw, special = converted(model_dir, SPECIAL)
        else:
            self.raw = _from_file(model_dir)
            special = {name: _token_text(config.get(name)) for name in SPECIAL}
        # One that there is not is undefined in a template, which writes nothing for it.
        self.special = {name: text for name, text in special.items() if text is not None}
        self.raw.no_truncation()
        self.raw.no_padding()
        eos = special["eos_token"]
        self.eos_id: int | None = self.raw.token_to_id(eos) if eos else None
        self.ends = frozenset(_ends(model_dir, self.eos_id))  # of an answer, by the model's own files
        self.vocab_size = self.raw.get_vocab_size(with_added_tokens=True)
        self.template = _template_source(model_dir, template_file, config)
        try:
            self.compiled: jinja2.Template | OwnTemplate | None
            self.compiled, self.template_variables = compile_template(self.template)
        except jinja2.TemplateError as exc:
            raise SettingsError(f"chat_template of {model_dir}: {exc}") from exc
        spec = _read_json(model_dir / "tokenizer.json") if mode == "file" else json.loads(self.raw.to_str())
        self._segments = Segments(self.raw, spec) if independent(spec) else None
        # Characters; None where a tokenizer changes the text first. The vocabulary has bytes, which are no fewer.
        as_it_is = self._segments is not None and not self._segments.normalizes
        self._longest_token = max(map(len, self.raw.get_vocab())) if as_it_is else None

    @property
    def tools_variable(self) -> str | None:
        """The template's name for a request's tools; None: it knows none."""
        return next((name for name in _TOOLS if name in self.template_variables), None)

    def with_template(self, source: str) -> "Tokenizer":
        """A copy with a client's chat template. Blocks, as its rendering does: a process compiles and renders it.

        Raises: RequestError when it does not compile, Saturated, NoProcess.
        """
        other = copy(self)
        try:
            other.compiled = own = OwnTemplate(source)
        except ValueError as exc:
            raise RequestError(f"'chat_template': {str(exc)[:_SHOWN]}", param="chat_template") from exc
        other.template_variables = own.variables
        other.template = source
        return other

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        segments = None if add_special_tokens else self._segments
        if segments is not None and (not segments.normalizes or segments.takes(text)):
            return segments.encode(text)
        # The batch call without offsets takes half the time of `encode`.
        ids: list[int] = self.raw.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def least_tokens(self, text: str, most: int) -> int:
        """A lower bound of the tokens in `text`, if it is found to be over `most` without tokenising all of it.

        Else 0: `text` has to be tokenised, which takes no longer than for a text that fits.
        """
        if self._longest_token is not None and len(text) > most * self._longest_token:
            return -(-len(text) // self._longest_token)
        if len(text) <= most * _TOKEN_CHARS:
            return 0
        count = 0
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE]
            count += len(self.raw.encode_batch_fast([piece], add_special_tokens=False)[0])
            if count > 2 * most:  # cutting the text adds a few tokens, but never doubles them
                return count // 2
        return 0

    @property
    def added_tokens(self) -> int:
        """Number of special tokens that `encode` adds to a text."""
        return self.raw.num_special_tokens_to_add(is_pair=False)

    def shortened(self, text: str, most: int, before: str = "", *, keeps_end: bool = False) -> list[int]:
        """The first token ids, `most` at most, of a text with `before` in front of it: the text's end is cut off.

        `keeps_end`: its beginning is cut off instead. `most`: over `added_tokens`. Not much more is tokenised.
        """
        encoding = self.raw.encode_batch_fast([before + self._part(text, most, keeps_end=keeps_end)])[0]
        ids: list[int] = encoding.ids
        if len(ids) <= most:
            return ids
        special_mask: list[int] = encoding.special_tokens_mask
        first, last = special_mask.index(0), len(special_mask) - special_mask[::-1].index(0)
        inner, room = ids[first:last], most - first - (len(ids) - last)
        if keeps_end:
            head_count = min(room, len(self.encode(before, add_special_tokens=False)) if before else 0)
            inner = inner[:head_count] + inner[len(inner) - (room - head_count) :]
        return ids[:first] + inner[:room] + ids[last:]

    def _part(self, text: str, most: int, *, keeps_end: bool) -> str:
        """The beginning of a text, or its end, that has more than `most` tokens; all of it if it has no more."""
        size = most * _TOKEN_CHARS
        while size < len(text):
            part = text[-size:] if keeps_end else text[:size]
            if len(self.raw.encode_batch_fast([part], add_special_tokens=False)[0]) > most + _MARGIN:
                return part
            size *= 2
        return text

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        # Unlike `decode`, the batch call lets other threads run.
        text: str = self.raw.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]
        return text

    def token_text(self, token_id: int) -> str:
        return self.raw.decode([token_id], skip_special_tokens=False)

    def render_chat(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **extra: Any) -> str:
        """Raises: RequestError when there is no template or it refuses the messages; as `with_template` for an own."""
        if self.compiled is None:
            raise RequestError("This model has no chat template; use /v1/completions or configure chat_template.")
        arguments = {"messages": messages, "add_generation_prompt": add_generation_prompt}
        try:
            return self.compiled.render({**_UNSET, **self.special, **extra, **arguments})
        except XylemError:
            raise
        except Exception as exc:  # a template is somebody else's program: it may raise anything
            raise RequestError(
                f"The chat template refused these messages: {str(exc)[:_SHOWN]}", param="messages"
            ) from exc


@lru_cache
def load_tokenizer(model_dir: Path, template_file: Path | None = None, mode: TokenizerMode = "file") -> Tokenizer:
    """One Tokenizer per model directory and process."""
    return Tokenizer(model_dir, template_file, mode)


def _from_file(model_dir: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    except Exception as exc:  # the Rust library raises bare Exception
        raise SettingsError(
            f"path={model_dir}: no readable tokenizer.json there; tokenizer_mode: engine may read others ({exc})"
        ) from exc


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        doc: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as exc:
        raise SettingsError(f"{path}: {exc}") from exc
    return doc


def _ends(model_dir: Path, eos_id: int | None) -> list[int]:
    eos = _read_json(model_dir / "generation_config.json").get("eos_token_id")
    own = [] if eos_id is None else [eos_id]
    return [*own, *(eos if isinstance(eos, list) else [] if eos is None else [eos])]


def _token_text(value: Any) -> str | None:
    """tokenizer_config.json gives a token as text or as {"content": text}."""
    return value.get("content") if isinstance(value, dict) else value


def _template_source(model_dir: Path, file: Path | None, config: dict[str, Any]) -> str | None:
    path = file or model_dir / "chat_template.jinja"
    try:
        source = path.read_text() if file or path.exists() else config.get("chat_template")
    except OSError as exc:
        raise SettingsError(f"chat_template={path}: {exc.strerror}") from exc
    if isinstance(source, list):  # several named templates
        source = next((t["template"] for t in source if t["name"] == "default"), None)
    return source
