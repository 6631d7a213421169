"""The kinds of requests: the tensors that each takes and gives, and the parameters that its outputs can't show."""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from app.errors import RequestError
from app.kserve.tensors import PICTURE, Datatype
from app.messages.kinds import Task

Kind = Literal["text", "chat", "embed", "score", "classify", "image"]
SAMPLING = "sampling_parameters"
STREAMING = ("stream", "streaming")
# By task: the kind of a request, and the one of a request that has an input of that name.
_OF_TASK: Mapping[Task, tuple[Kind, Mapping[str, Kind]]] = {
    "generate": ("text", {PICTURE: "chat"}),
    "embed": ("embed", {"text_1": "score", "text_2": "score"}),
    "classify": ("classify", {}),
    "image": ("image", {}),
}
# Fields of the endpoints' bodies that the outputs can't show, or that are inputs here.
_REFUSED = frozenset(
    """
    echo input logprobs messages model n prompt prompt_embeds prompt_logprobs return_token_ids stream
    stream_options
    """.split()
)
_REFUSED_IN_CHATS = frozenset(
    "add_generation_prompt continue_final_message functions function_call tool_choice tools top_logprobs".split()
)
_REFUSED_IN_PICTURES = frozenset("partial_images response_format".split())

# Name, datatype and shape of what a request of each kind takes and gives; -1: any number.
Signature = Sequence[tuple[str, Datatype, list[int]]]
_TEXT: Signature = [("text_input", "BYTES", [1]), ("streaming", "BOOL", [1]), (SAMPLING, "BYTES", [1])]
_ANSWER: Signature = [("text_output", "BYTES", [1]), ("finish_reason", "BYTES", [1])]
INPUTS: Mapping[Kind, Signature] = {
    "text": _TEXT,
    "chat": [*_TEXT, (PICTURE, "BYTES", [-1])],
    "embed": [("text_input", "BYTES", [-1])],
    "score": [("text_1", "BYTES", [-1]), ("text_2", "BYTES", [-1])],
    "classify": [("text_input", "BYTES", [-1])],
    "image": [("text_input", "BYTES", [1]), (SAMPLING, "BYTES", [1])],
}
OUTPUTS: Mapping[Kind, Signature] = {
    "text": _ANSWER,
    "chat": _ANSWER,
    "embed": [("embeddings", "FP32", [-1, -1])],
    "score": [("scores", "FP32", [-1])],
    "classify": [("labels", "BYTES", [-1]), ("probs", "FP32", [-1, -1])],
    "image": [(PICTURE, "BYTES", [-1])],
}


def kind_of(task: Task, inputs: Collection[str]) -> Kind:
    """The kind of a request with these inputs. Raises: RequestError."""
    if task not in _OF_TASK:
        raise RequestError(f"A model with the task '{task}' is not served by this protocol.", param="model")
    usual, by_input = _OF_TASK[task]
    return next((kind for name, kind in by_input.items() if name in inputs), usual)


def refused_of(kind: Kind) -> frozenset[str]:
    """Parameters that a request of the kind can't have."""
    if kind == "image":
        return (_REFUSED - {"n"}) | _REFUSED_IN_PICTURES
    return _REFUSED | _REFUSED_IN_CHATS if kind == "chat" else _REFUSED


def signature_of(task: Task, tensors: Mapping[Kind, Signature]) -> Signature:
    """All tensors of a task's kinds."""
    if task not in _OF_TASK:
        return []
    usual, by_input = _OF_TASK[task]
    return list({one[0]: one for kind in (usual, *by_input.values()) for one in tensors[kind]}.values())
