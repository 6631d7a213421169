"""Pictures and sound of a conversation: found in its messages, fetched, and placed in its prompt."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from app.dispatch.media_reader import Origin, Samples
from app.dispatch.models import Model
from app.dispatch.runtime import Deployment
from app.errors import RequestError
from app.messages import MEDIA_NAMES, Media
from app.openai.conversation import Message


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
    for origin, param in zip(origins, params, strict=True):
        if origin.kind != "image" or model.pictures is None:
            raise RequestError(f"'{param}': the model '{model.name}' takes no {MEDIA_NAMES[origin.kind]}.", param=param)
    if not origins:
        return {}
    named: dict[Origin, str] = {}
    for origin, param in zip(origins, params, strict=True):
        named.setdefault(origin, param)
    assert state.media is not None
    return await state.media.read(named, state.asker)


def expanded(
    model: Model, prompt: list[int], origins: Sequence[Origin], samples: Samples, param: str
) -> tuple[list[int], list[Media]]:
    """The prompt with what stands for each picture, and where that is. `param`: the messages' field.

    Raises: RequestError.
    """
    pictures = model.pictures
    assert pictures is not None
    places = [place for place, token in enumerate(prompt) if token == pictures.token_id]
    if len(places) != len(origins):
        raise RequestError(
            f"'{param}': the chat template shows {len(places)} pictures where there are {len(origins)}, or a text has "
            f"the model's own sign of a picture, '{pictures.marker}'.",
            param=param,
        )
    out: list[int] = []
    found: list[Media] = []
    last = 0
    for place, origin in zip(places, origins, strict=True):
        media = samples[origin].media
        height, width = media.shape
        try:
            tokens = pictures.tokens(height, width)
        except ValueError as exc:
            raise RequestError(f"'{param}': a picture of {width} x {height} pixels: {exc}.", param=param) from exc
        out += prompt[last:place]
        found.append(replace(media, offset=len(out), length=len(tokens)))
        out += tokens
        last = place + 1
    return out + prompt[last:], found


def counted(model: Model, text: str, origins: Sequence[Origin], samples: Samples) -> list[int]:
    """The tokens of a conversation that need not fit the context. Raises: RequestError."""
    prompt = model.count(text, add_special_tokens=False)
    return expanded(model, prompt, origins, samples, "messages")[0] if origins else prompt
