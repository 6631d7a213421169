"""Pictures, videos and sound of a conversation: found in its messages, fetched, and placed in its prompt."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from app.dispatch.media_reader import Origin, OriginKind, Samples, samples_of
from app.dispatch.models import Model
from app.dispatch.runtime import Deployment
from app.errors import PromptTooLong, RequestError
from app.media.placeholders import Pictures, Sounds
from app.messages import Media, MediaKind
from app.openai.content_parts import MediaPart
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


def named_media(messages: Sequence[Message]) -> tuple[list[Origin], list[str]]:
    """The origins and the names of the parts of a chat's request. Not for an event loop, if there may be many."""
    return origins_of(messages), params_of(messages)


def params_of(messages: Sequence[Message]) -> list[str]:
    """The parts' names in a chat's request, in the same order."""
    return [
        f"messages.{i}.content.{j}"
        for i, message in enumerate(messages)
        if isinstance(content := message.content, list)
        for j, part in enumerate(content)
        if isinstance(part, MediaPart)
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
        media = samples[origin].media
        if origin.kind == "file" and media.frame is not None and "video" not in takes:
            raise _not_taken(model, "video", param)
        if media.kind == "audio":
            _tokens(model, media, param)
    return samples


def _taken(model: Model) -> set[OriginKind]:
    takes: set[OriginKind] = set() if model.sounds is None else {"audio"}
    if model.pictures is not None:
        takes |= {"image", "file"}
        if model.pictures.takes_videos:
            takes.add("video")
    return takes


def _tokens(model: Model, media: Media, param: str) -> list[int]:
    """What stands for it. Raises: RequestError for a shape that the model can't take."""
    try:
        if media.kind == "audio":
            assert model.sounds is not None
            (samples,) = media.shape
            return model.sounds.tokens(samples)
        assert model.pictures is not None
        height, width = media.shape
        return model.pictures.tokens(height, width)
    except ValueError as exc:
        shown = "a sound" if media.kind == "audio" else f"a picture of {media.shape[1]} x {media.shape[0]} pixels"
        raise RequestError(f"'{param}': {shown}: {exc}.", param=param) from exc


def _not_taken(model: Model, kind: OriginKind, param: str) -> RequestError:
    return RequestError(f"'{param}': the model '{model.name}' takes no {_NAMES[kind]}.", param=param)


def expanded(
    model: Model, prompt: list[int], origins: Sequence[Origin], samples: Samples, param: str
) -> tuple[list[int], list[Media]]:
    """The prompt with what stands for each picture, frame or sound, and where that is. `param`: the messages' field.

    Raises: RequestError; PromptTooLong, also where it need not fit the context, as a short request may name one
    picture very often.
    """
    families: tuple[tuple[MediaKind, str, Pictures | Sounds | None], ...] = (
        ("image", "picture", model.pictures),
        ("audio", "sound", model.sounds),
    )
    kinds = {family.token_id: kind for kind, _, family in families if family is not None}
    places = [place for place, token in enumerate(prompt) if token in kinds]
    found = [sample.media for origin in origins for sample in samples_of(origin, samples)]
    shown, given = [kinds[prompt[place]] for place in places], [media.kind for media in found]
    for kind, name, family in families:
        if family is not None and (count := shown.count(kind)) != given.count(kind):
            raise RequestError(
                f"'{param}': the chat template shows {count} {name}s where there are {given.count(kind)}, or a text "
                f"has the model's own sign of a {name}, '{family.marker}'.",
                param=param,
            )
    if shown != given:
        raise RequestError(f"'{param}': the chat template shows pictures and sounds in another order.", param=param)
    out: list[int] = []
    placed: list[Media] = []
    last = 0
    for place, media in zip(places, found, strict=True):
        tokens = _tokens(model, media, param)
        out += prompt[last:place]
        placed.append(replace(media, offset=len(out), length=len(tokens)))
        out += tokens
        last = place + 1
        if len(out) > model.most_tokens:
            said = f"'{param}' has more than {model.most_tokens} tokens with its pictures and sounds."
            raise PromptTooLong(said, param=param)
    return out + prompt[last:], placed


def counted(model: Model, text: str, origins: Sequence[Origin], samples: Samples) -> list[int]:
    """The tokens of a conversation that need not fit the context. Raises: RequestError."""
    prompt = model.count(text, add_special_tokens=False)
    return expanded(model, prompt, origins, samples, "messages")[0] if origins else prompt
