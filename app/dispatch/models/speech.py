"""Makes the tokens with which a Whisper model's decoder begins: what it is asked. Pure, but for the model's files."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from app.errors import SettingsError
from app.pools.schema import Pool
from app.tokenizing.tokenizer import Tokenizer

SpeechTask = Literal["transcribe", "translate"]
WINDOW_S = 30.0  # what the encoder takes at once; less is filled up with silence, and costs as much
ENCODER_TOKENS = 1500  # of a window
TICK_S = 0.02  # between two tokens of time

_START = "<|startoftranscript|>"
_NEVER = -100.0  # a bias with which a token is not written


class Speech(Struct, frozen=True):
    """Token ids; None where the model has no such token."""

    start: tuple[int, ...]
    languages: dict[str, int]  # by ISO 639-1's code; empty: English only
    tasks: dict[SpeechTask, int]
    no_times: int | None
    earlier: int | None  # before a text that is to have come before
    first_time: int | None  # the token of 0.00 s, after which all others of times come
    suppressed: tuple[int, ...]
    signs: frozenset[int]  # all tokens that are no text

    @property
    def translates(self) -> bool:
        return "translate" in self.tasks

    def prompt(self, task: SpeechTask, language: str | None, *, times: bool, context: Sequence[int] = ()) -> list[int]:
        """`language`: one of `languages`, if there are some; None: English. `context`: tokens of an earlier text."""
        before = [self.earlier, *context] if context and self.earlier is not None else []
        task_tokens = [self.languages[language or "en"], self.tasks[task]] if self.languages else []
        if times and self.first_time is not None:
            end = [self.first_time]  # without it, a model may choose to tell no times
        else:
            end = [] if self.no_times is None else [self.no_times]
        return [*before, *self.start, *task_tokens, *end]

    def bias(self, *, times: bool) -> dict[int, float] | None:
        never = [*self.suppressed, *([self.no_times] if times and self.no_times is not None else [])]
        return dict.fromkeys(never, _NEVER) or None

    def is_time(self, token: int) -> bool:
        return self.first_time is not None and token >= self.first_time


def speech_of(pool: Pool, tokenizer: Tokenizer) -> Speech:
    """Raises: SettingsError for another kind of model, unless the mock engine plays it."""
    find = tokenizer.raw.token_to_id
    start, signs = find(_START), frozenset(tokenizer.raw.get_added_tokens_decoder())
    if start is None:
        if pool.engine != "mock":
            raise SettingsError(f"path={pool.model_dir}: a pool of task transcribe needs a Whisper model")
        begin = tuple(tokenizer.encode(_START, add_special_tokens=False))
        return Speech(begin, {}, tasks={}, no_times=None, earlier=None, first_time=None, suppressed=(), signs=signs)
    no_times = find("<|notimestamps|>")
    first_time = find("<|0.00|>")
    if first_time is None and no_times is not None:  # older files don't name them
        first_time = no_times + 1
    several = pool.is_multilingual
    tasks: dict[SpeechTask, int] = {}
    for task in ("transcribe", "translate"):
        if several and (token := find(f"<|{task}|>")) is not None:
            tasks[task] = token
    languages = {code: token for code in LANGUAGES if several and (token := find(f"<|{code}|>")) is not None}
    earlier = find("<|startofprev|>")
    return Speech(
        (start,), languages, tasks, no_times, earlier, first_time=first_time, suppressed=pool.suppressed, signs=signs
    )


_NAMED = """
en:english zh:chinese de:german es:spanish ru:russian ko:korean fr:french ja:japanese pt:portuguese tr:turkish
pl:polish ca:catalan nl:dutch ar:arabic sv:swedish it:italian id:indonesian hi:hindi fi:finnish vi:vietnamese
he:hebrew uk:ukrainian el:greek ms:malay cs:czech ro:romanian da:danish hu:hungarian ta:tamil no:norwegian th:thai
ur:urdu hr:croatian bg:bulgarian lt:lithuanian la:latin mi:maori ml:malayalam cy:welsh sk:slovak te:telugu
fa:persian lv:latvian bn:bengali sr:serbian az:azerbaijani sl:slovenian kn:kannada et:estonian mk:macedonian
br:breton eu:basque is:icelandic hy:armenian ne:nepali mn:mongolian bs:bosnian kk:kazakh sq:albanian sw:swahili
gl:galician mr:marathi pa:punjabi si:sinhala km:khmer sn:shona yo:yoruba so:somali af:afrikaans oc:occitan
ka:georgian be:belarusian tg:tajik sd:sindhi gu:gujarati am:amharic yi:yiddish lo:lao uz:uzbek fo:faroese ht:haitian
ps:pashto tk:turkmen nn:nynorsk mt:maltese sa:sanskrit lb:luxembourgish my:myanmar bo:tibetan tl:tagalog mg:malagasy
as:assamese tt:tatar haw:hawaiian ln:lingala ha:hausa ba:bashkir jw:javanese su:sundanese yue:cantonese
"""
# What verbose answers call the languages.
LANGUAGES: dict[str, str] = dict(entry.split(":") for entry in _NAMED.split())
