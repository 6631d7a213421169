"""llguidance without our bounds before it: dies of what leads too deep; hangs and swells when told to."""

from llguidance import LLMatcher

from app.grammars.serving import serve_checks
from app.messages.job import Grammar


def _check(grammar: Grammar) -> None:
    match grammar.text.split()[0]:
        case "hangs":
            while True:
                pass
        case "swells":
            raise ValueError(str(len(b" " * 2**32)))
        case "environment":
            import os

            raise ValueError(" ".join(sorted(os.environ)))
    LLMatcher.validate_grammar_with_warnings(grammar.text)


if __name__ == "__main__":
    serve_checks(_check)
