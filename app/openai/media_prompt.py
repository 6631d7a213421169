"""Pictures, frames of videos and sound in a conversation's prompt. No I/O."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from app.dispatch.media.media_reader import Origin, Sample, Samples, samples_of
from app.dispatch.models.models import Model
from app.errors import PromptTooLong, RequestError
from app.media.placeholders import PictureFamily, Sounds
from app.media.placeholders.places import Place, joined, places
from app.messages.media import Media, MediaKind
from app.openai.template_parts import Marker


class Expanded(NamedTuple):
    prompt: list[int]  # with what stands for each picture, frame or sound
    media: list[Media]  # where that is
    written: list[int]  # as in `messages.Job`


class _Family(NamedTuple):
    """A model's way to write media of one kind in prompts."""

    name: str  # for people
    marker: str
    target: tuple[int, ...]  # none: all of the kind are behind `first`
    joins: tuple[tuple[int, int, int], ...] = ()
    first: tuple[int, ...] = ()


def markers_of(model: Model, samples: Samples) -> dict[MediaKind, Marker]:
    """Markers of the kinds that the model takes, in its prompts, as far as its files or these samples show them."""
    markers = {kind: Marker(text, text) for kind, text in model.markers.items()}
    for sign in (sample.becomes.sign for sample in samples.values() if sample.becomes is not None):
        markers[sign.kind] = Marker(sign.marker, model.tokenizer.decode([*sign.target], skip_special_tokens=False))
    return markers


def _families(model: Model, samples: Samples) -> dict[MediaKind, _Family]:
    names: dict[MediaKind, str] = {"image": "picture", "audio": "sound", "video": "video"}
    by_kind: dict[MediaKind, PictureFamily | Sounds | None] = {"image": model.pictures, "audio": model.sounds}
    families = {
        kind: _Family(names[kind], one.marker, (one.token_id,)) for kind, one in by_kind.items() if one is not None
    }
    for sign in (sample.becomes.sign for sample in samples.values() if sample.becomes is not None):
        families[sign.kind] = _Family(names[sign.kind], sign.marker, sign.target, sign.joins, sign.first)
    return families


def encoded(model: Model, text: str, samples: Samples, encode: Callable[[str], list[int]]) -> list[int]:
    """The tokens of a prompt as its template wrote it. A sign that is no token of its own stays apart from the text.

    Some models' signs are plain texts, whose tokens would be others beside what they touch.
    """
    targets = (sample.becomes.sign.target for sample in samples.values() if sample.becomes is not None)
    signs = {
        model.tokenizer.decode([*target], skip_special_tokens=False): target for target in targets if len(target) > 1
    }
    if not signs:
        return encode(text)
    parts = re.split(f"({'|'.join(map(re.escape, signs))})", text)
    return [token for part in parts if part for token in (signs.get(part) or encode(part))]


def tokens_of(model: Model, sample: Sample, number: int, of: int, param: str) -> Sequence[int]:
    """Tokens that stand for a sample. `number`: how many of its kind are before it. `of`: how many there are.

    Raises: RequestError for a shape that the model can't take.
    """
    if sample.becomes is not None:
        return sample.becomes.at(number, of, param)
    media = sample.media
    try:
        if media.kind == "audio":
            assert model.sounds is not None
            (samples,) = media.shape
            return model.sounds.tokens(samples)
        assert model.pictures is not None
        height, width = media.shape
        return model.pictures.tokens(height, width)
    except ValueError as exc:
        raise unfit(media, str(exc), param) from exc


def unfit(media: Media, why: str, param: str) -> RequestError:
    match media.kind, media.shape:
        case "image", (height, width):
            subject = f"a picture of {width} x {height} pixels"
        case "video", (frames, height, width, _):
            subject = f"a video of {frames} x {width} x {height} pixels"
        case _:
            subject = "a sound"
    return RequestError(f"'{param}': {subject}: {why}.", param=param)


def expanded(model: Model, prompt: list[int], origins: Sequence[Origin], samples: Samples, param: str) -> Expanded:
    """`param`: the messages' field.

    Raises: RequestError; PromptTooLong, also where it need not fit the context, as a short request may name one
    picture very often.
    """
    families = _families(model, samples)
    ordered_samples = [sample for origin in origins for sample in samples_of(origin, samples)]
    kinds = [sample.media.kind for sample in ordered_samples]
    positions = list(places(prompt, {kind: family.target for kind, family in families.items() if family.target}))
    positions = [*_put_first(prompt, kinds, families, param), *positions]
    _check_shown([place.kind for place in positions], kinds, families, param)
    out: list[int] = []
    media: list[Media] = []
    last, counts, whole = 0, Counter[MediaKind](), Counter(kinds)
    for place, sample in zip(positions, ordered_samples, strict=True):
        tokens = tokens_of(model, sample, counts[place.kind], whole[place.kind], param)
        counts[place.kind] += 1
        out += prompt[last : place.begin]
        media.append(replace(sample.media, offset=len(out), length=len(tokens)))
        out += tokens
        last = place.begin + len(families[place.kind].target)
        if len(out) > model.most_tokens:
            problem = f"'{param}' has more than {model.most_tokens} tokens with its pictures and sounds."
            raise PromptTooLong(problem, param=param)
    out += prompt[last:]
    if joins := [join for family in families.values() for join in family.joins]:
        out, where = joined(out, joins)
        media = [replace(one, offset=where[one.offset]) for one in media]
    return Expanded(out, media, prompt if any(sample.becomes is not None for sample in ordered_samples) else [])


def _put_first(
    prompt: Sequence[int], kinds: Sequence[MediaKind], families: Mapping[MediaKind, _Family], param: str
) -> Iterator[Place]:
    """Places of the media that no template shows. Raises: RequestError."""
    for kind, family in families.items():
        if not family.target and kind in kinds:
            if tuple(prompt[: len(family.first)]) != family.first:
                problem = f"'{param}': the chat template does not begin as the engine needs it for a {family.name}."
                raise RequestError(problem, param=param)
            yield from [Place(len(family.first), kind)] * kinds.count(kind)


def _check_shown(
    places: Sequence[MediaKind], kinds: Sequence[MediaKind], families: Mapping[MediaKind, _Family], param: str
) -> None:
    """Raises: RequestError."""
    for kind, family in families.items():
        if (count := places.count(kind)) != kinds.count(kind):
            raise RequestError(
                f"'{param}': the chat template shows {count} {family.name}s where there are {kinds.count(kind)}, or a "
                f"text has the model's own sign of a {family.name}, '{family.marker}'.",
                param=param,
            )
    if places != kinds:
        raise RequestError(f"'{param}': the chat template shows pictures and sounds in another order.", param=param)


def counted(model: Model, text: str, origins: Sequence[Origin], samples: Samples) -> list[int]:
    """The tokens of a conversation that need not fit the context. Raises: RequestError."""
    prompt = encoded(model, text, samples, partial(model.count, add_special_tokens=False))
    return expanded(model, prompt, origins, samples, "messages").prompt if origins else prompt
