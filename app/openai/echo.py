"""`echo`: a text completion that begins with its prompt."""

from msgspec.structs import replace

from app.dispatch.generation_plan import GenerationPlan
from app.messages.events import Delta, TokenLogprob
from app.tokenizing.token_names import TokenNames


class Echo:
    """Puts the prompt, and its logprobs where they were asked for, in front of each choice's first delta."""

    def __init__(self, plan: GenerationPlan) -> None:
        assert plan.echo is not None
        self._tokenizer, self._prompts, self._texts = plan.model.tokenizer, plan.prompts, plan.echo
        self._n, self._only = plan.sampling[0].n, not plan.generates
        self._begun: set[int] = set()

    def __call__(self, choice: int, d: Delta) -> Delta:
        if self._only:
            d = replace(d, text="", tokens=[], logprobs=None if d.logprobs is None else [], stop=None)
        if choice in self._begun:
            return d
        self._begun.add(choice)
        prompt, text = self._prompts[choice // self._n], self._texts[choice // self._n]
        logprobs = d.logprobs
        if logprobs is not None and d.prompt_logprobs is not None:
            logprobs = [*self._named(d.prompt_logprobs, prompt), *logprobs]
        return replace(d, text=text + d.text, logprobs=logprobs, finish="length" if self._only else d.finish)

    def _named(self, logprobs: list[TokenLogprob | None], prompt: list[int]) -> list[TokenLogprob]:
        """Nothing predicts a prompt's first token: OpenAI shows it without a logprob. Here NaN stands for none."""
        first = TokenLogprob(TokenNames(self._tokenizer).add(prompt[0]), prompt[0], float("nan"))
        return [first if lp is None else lp for lp in logprobs]
