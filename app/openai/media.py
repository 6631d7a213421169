"""Pictures, videos and sound of a conversation: found in its messages, fetched, and placed in its prompt."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from app.dispatch.media_reader import Origin, OriginKind, Samples, samples_of
from app.dispatch.models import Model
from app.dispatch.runtime import Deployment
from app.errors import RequestError
from app.messages import Media
from app.openai.conversation import Message

_NAMES: Mapping[OriginKind, str] = {
    "image": "pictures", "audio": "sound", "video": "videos", "file": "pictures",
}  # fmt: skip


def has_media(messages: Iterable[Message]) -> bool:
    """Asked for each request."""
    for message in messages:  # noqa: SIM110 (a generator would cost as much as all the rest)
        if type(message.content) is list and message.media:
            return True
    return False


def origins_of(messages: Iterable[Message]) -> list[Origin]:
    """In the order of the prompt."""
    return [part.origin for message in messages for part in message.media]


def params_of(messages: Sequence[Message]) -> list[str]:
    """The parts' names in a chat's request, in the same order."""
    return [
        f"messages.{i}.content.{j}"
        for i, message in enumerate(messages)
        if (media := message.media) and (content := message.content) is not None
        for j, part in enumerate(content)
        if part in media
    ]


async def load_media(state: Deployment, model: Model, origins: Sequence[Origin], params: Sequence[str]) -> Samples:
    """Raises: RequestError about a part, also when the model can't take it; Saturated, StorageDown, StoreDown."""
    if not origins:
        return {}
    takes = _taken(model)
    named: dict[Origin, str] = {}
    for origin, param in zip(origins, params, strict=True):
        if origin.kind not in takes:
            raise _not_taken(model, origin.kind, param)
        named.setdefault(origin, param)
    assert state.media is not None
    samples = await state.media.read(named, state.asker)
    for origin, param in named.items():
        if origin.kind == "file" and samples[origin].media.frame is not None and "video" not in takes:
            raise _not_taken(model, "video", param)
    return samples


def _taken(model: Model) -> set[OriginKind]:
    if model.pictures is None:
        return set()
    return {"image", "file", "video"} if model.pictures.takes_videos else {"image", "file"}


def _not_taken(model: Model, kind: OriginKind, param: str) -> RequestError:
    return RequestError(f"'{param}': the model '{model.name}' takes no {_NAMES[kind]}.", param=param)


def expanded(
    model: Model, prompt: list[int], origins: Sequence[Origin], samples: Samples, param: str
) -> tuple[list[int], list[Media]]:
    """The prompt with what stands for each picture or frame, and where that is. `param`: the messages' field.

    Raises: RequestError.
    """
    pictures = model.pictures
    assert pictures is not None
    places = [place for place, token in enumerate(prompt) if token == pictures.token_id]
    found = [sample.media for origin in origins for sample in samples_of(origin, samples)]
    if len(places) != len(found):
        raise RequestError(
            f"'{param}': the chat template shows {len(places)} pictures where there are {len(found)}, or a text has "
            f"the model's own sign of a picture, '{pictures.marker}'.",
            param=param,
        )
    out: list[int] = []
    placed: list[Media] = []
    last = 0
    for place, media in zip(places, found, strict=True):
        height, width = media.shape
        try:
            tokens = pictures.tokens(height, width)
        except ValueError as exc:
            raise RequestError(f"'{param}': a picture of {width} x {height} pixels: {exc}.", param=param) from exc
        out += prompt[last:place]
        placed.append(replace(media, offset=len(out), length=len(tokens)))
        out += tokens
        last = place + 1
    return out + prompt[last:], placed


def counted(model: Model, text: str, origins: Sequence[Origin], samples: Samples) -> list[int]:
    """The tokens of a conversation that need not fit the context. Raises: RequestError."""
    prompt = model.count(text, add_special_tokens=False)
    return expanded(model, prompt, origins, samples, "messages")[0] if origins else prompt
