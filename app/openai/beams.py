"""Beam search, by vLLM's names of fields: the likeliest answers instead of drawn ones."""

from typing import Annotated, Any, Literal

from pydantic import Field

from app.errors import RequestError
from app.messages.job import BeamSearch, Sampling
from app.schemas.body import Body

MOST_BEAMS = 16  # each beam is an answer that the engine makes at once
# Fields that a search can't heed, each with the values that change nothing.
_UNHEEDED: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "top_p": (1.0,),
    "top_k": (-1, 0),
    "min_p": (0.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "logit_bias": ({},),
    "stop": ([],),
    "prompt_logprobs": (),
    "prompt_embeds": ([],),
    "echo": (False,),
}
_INSTEAD = {"stop": ": stop_token_ids can", "stream": ": no answer is known before the search is over"}


class BeamFields(Body):
    """The fields of chat and text completions for a search. The others say nothing without `use_beam_search`."""

    use_beam_search: bool | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None  # beams; null: as many as choices
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    early_stopping: bool | Literal["never"] | None = None

    def check_beams(self) -> None:
        """Raises: RequestError."""
        if not self.use_beam_search:
            for name, neutral in (("best_of", 1), ("length_penalty", 1.0), ("early_stopping", False)):
                if getattr(self, name) not in (None, neutral):
                    raise RequestError(f"'{name}' is not supported without 'use_beam_search'.", param=name)
            return
        for name, values in _UNHEEDED.items():
            if (value := getattr(self, name, None)) is not None and value not in values:
                raise RequestError(
                    f"'{name}' can't be used with 'use_beam_search'{_INSTEAD.get(name, '')}.", param=name
                )
        choices = getattr(self, "n", None) or 1
        if max(choices, self.best_of or 1) > MOST_BEAMS:
            name = "n" if choices > MOST_BEAMS else "best_of"
            raise RequestError(f"'{name}': a search has at most {MOST_BEAMS} beams.", param=name)
        if self.best_of is not None and self.best_of < choices:
            raise RequestError(f"'best_of' is below 'n' ({choices}).", param="best_of")

    def searched(self, sampling: Sampling) -> Sampling:
        """The sampling of a search, which draws nothing: neither a model's defaults nor a temperature count."""
        if not self.use_beam_search:
            return sampling
        beams = BeamSearch(
            self.best_of or sampling.n,
            1.0 if self.length_penalty is None else self.length_penalty,
            self.early_stopping or False,
        )
        s = sampling
        return Sampling(
            s.max_tokens,
            s.min_tokens,
            temperature=0.0,
            stop_token_ids=s.stop_token_ids,
            include_stop=s.include_stop,
            ignore_eos=s.ignore_eos,
            n=s.n,
            logprobs=s.logprobs,
            special_tokens=s.special_tokens,
            beams=beams,
        )


def unbound(where: str) -> RequestError:
    """The refusal of a format that an answer of a search would have to keep to; `where`: the field that asks for it."""
    return RequestError(
        f"'{where}' can't be used with 'use_beam_search': a search sees logprobs before any grammar.", param=where
    )
