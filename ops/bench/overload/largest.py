"""The largest bodies that endpoints take, and larger ones, of a client whose limits have room for them."""

import json

from tests.worst_requests import FORM, Request

CONTEXT = 131_072  # tokens
_TOGETHER = 2**18  # tokens of a request's prompts
_FILE = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' + (
    b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n%b\r\n--x--\r\n'
)


def bodies(most: int) -> list[Request]:
    """Accepted and refused ones. `most`: bytes of the largest."""
    words = "The quick brown fox jumps over the lazy dog, again. "
    long = words * (most // len(words) - 10)
    context, together = (min(tokens, most // 8) for tokens in (CONTEXT, _TOGETHER))
    completions: list[dict[str, object]] = [
        {"prompt": [1500] * (context - 1)},
        {"prompt": [[1500] * (together // 128)] * 128},
        {"prompt": [1500] * (context - 1), "echo": True, "n": 2},
        {"prompt": [1] * (most // 3 - 100)},
        {"prompt": [[1]] * (most // 5 - 100)},
        {"prompt": words * (context // 30)},
        {"prompt": long},
        {"prompt": ["a"] * 128, "stop": ["x" * 1024] * 16},
        {"prompt": "a", "logit_bias": {str(i): 1 for i in range(2**16)}},
        {"prompt": "a", "x": [[]] * (most // 4 - 100)},
    ]
    chats: list[dict[str, object]] = [
        {"messages": [{"role": "user", "content": "hello"}] * 4096},
        {"messages": [{"role": "user", "content": long}]},
        {"messages": [{"role": "user", "content": "a"}] * (most // 40)},
    ]
    responses: list[dict[str, object]] = [
        {"input": words * (context // 30)}, {"input": "a", "user": "x" * (most - 1000)}, {"input": long},
    ]  # fmt: skip
    others: list[tuple[str, dict[str, object]]] = [
        ("/tokenize", {"prompt": "a" * together}),
        ("/tokenize", {"prompt": long}),
        ("/detokenize", {"tokens": [1500] * together}),
        ("/detokenize", {"tokens": [1] * (most // 3 - 100)}),
        ("/v1/batches", {"metadata": {str(i): "x" for i in range(4000)}}),
    ]
    generations = [("/v1/completions", {"max_tokens": 1, **body}) for body in completions]
    generations += [("/v1/chat/completions", {"max_tokens": 1, **body}) for body in chats]
    generations += [("/v1/responses", {"max_output_tokens": 1, **body}) for body in responses]
    requests = [
        Request("POST", path, "application/json", json.dumps({"model": "mock", **body}, separators=(",", ":")).encode())
        for path, body in generations + others
    ]
    return [*requests, Request("POST", "/v1/files", FORM, _FILE % (b"\r\n" * (most // 2)))]
