"""Pictures, videos and sound of a conversation: found in its messages, fetched, and what stands for them learned."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence

from msgspec.structs import replace

from app.dispatch.asking import Asking
from app.dispatch.media.expansions import Shown
from app.dispatch.media.media_reader import Learned, Origin, OriginKind, Sample, Samples
from app.dispatch.models.models import Model
from app.errors import RequestError
from app.messages.media import MOST_RATIO, MediaKind, MediaSign, is_drawable
from app.openai.content_parts import MediaPart
from app.openai.conversation import Message
from app.openai.media_prompt import tokens_of, unfit
from app.running.ending import side_by_side
from app.tenants.admission import admitted
from app.tenants.cost import Used

_NAMES: Mapping[OriginKind, str] = {"image": "pictures", "audio": "sound", "video": "videos", "file": "pictures"}


def origins_of(messages: Iterable[Message]) -> list[Origin]:
    """Origins of the messages' media, in the order of the prompt."""
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


async def load_media(asking: Asking, model: Model, origins: Sequence[Origin], params: Sequence[str]) -> Samples:
    """Raises: RequestError about a part, also when the model can't take it; Saturated, StorageDown, StoreDown.

    And NoWorker if only the model's engines know what its media become, and there is none.
    """
    if not origins:
        return {}
    assert asking.serving.media is not None
    signs = await _signs(asking, model, origins)
    takes = _taken(model, signs)
    param_of: dict[Origin, str] = {}
    for origin, param in zip(origins, params, strict=True):
        if origin.kind not in takes:
            raise _not_taken(model, origin.kind, param)
        param_of.setdefault(origin, param)
    _check_alone(model, [_kinds(model, origin)[0] for origin in origins], params, signs)
    if signs:  # what they may become is charged before their sizes are known
        most = min(sum(_most(model, signs, origin) for origin in origins), model.context_len)
        await admitted(Used(model.name, most, parent=model.parent))
    samples = await asking.serving.media.read(param_of, asking.asker, whole_videos="video" in signs)
    for origin, param in param_of.items():
        media = samples[origin].media
        if origin.kind == "file" and (media.kind == "video" or media.frame is not None) and "video" not in takes:
            raise _not_taken(model, "video", param)
        if media.kind == "audio" and "audio" not in signs:
            tokens_of(model, samples[origin], 0, 1, param)
        if media.kind in signs and not is_drawable(media.kind, media.shape):
            raise unfit(media, f"one side is more than {MOST_RATIO} times the other", param)
    # Again, as the content of files may say otherwise.
    _check_alone(model, [samples[origin].media.kind for origin in origins], params, signs)
    return await _learned(asking, model, origins, samples, signs) if signs else samples


async def _signs(asking: Asking, model: Model, origins: Sequence[Origin]) -> dict[MediaKind, MediaSign]:
    """Signs of the origins' kinds that the model's files don't explain. Raises: NoWorker, StoreDown."""
    kinds = {kind for origin in origins for kind in _kinds(model, origin)}
    unknown = kinds - model.markers.keys()
    expansions = None if asking.serving.media is None else asking.serving.media.expansions
    if not unknown or expansions is None or model.task != "generate":
        return {}
    signs = await expansions.signs(model.pools)
    return {kind: signs[kind] for kind in unknown if kind in signs}


def _taken(model: Model, signs: Container[MediaKind]) -> set[OriginKind]:
    takes: set[OriginKind] = set()
    if model.sounds is not None or "audio" in signs:
        takes.add("audio")
    if model.pictures is not None or "image" in signs:
        takes |= {"image", "file"}
    if model.takes_frames or "video" in signs:
        takes |= {"video", "file"}
    return takes


def _kinds(model: Model, origin: Origin) -> Sequence[MediaKind]:
    """The kinds as which a medium of this origin may be in the prompt."""
    match origin.kind:
        case "audio":
            return ("audio",)
        case "video" if not model.takes_frames:
            return ("video",)
        case "file" if not model.takes_frames:
            return ("image", "video")
    return ("image",)


def _check_alone(
    model: Model, kinds: Sequence[MediaKind], params: Sequence[str], signs: Mapping[MediaKind, MediaSign]
) -> None:
    """Raises: RequestError about the second of a kind of which the engine takes one."""
    counts = Counter[MediaKind]()
    for kind, param in zip(kinds, params, strict=True):
        counts[kind] += 1
        if counts[kind] > 1 and kind in signs and signs[kind].alone:
            second = {"audio": "sound", "video": "video"}.get(kind, "picture")
            raise RequestError(f"'{param}': the model '{model.name}' takes no second {second}.", param=param)


def _most(model: Model, signs: Mapping[MediaKind, MediaSign], origin: Origin) -> int:
    """Tokens that it may become."""
    return max((signs[kind].most for kind in _kinds(model, origin) if kind in signs), default=0)


async def _learned(
    asking: Asking,
    model: Model,
    origins: Sequence[Origin],
    samples: dict[Origin, Sample],
    signs: Mapping[MediaKind, MediaSign],
) -> dict[Origin, Sample]:
    """The samples with what stands for each. Raises: RequestError, Saturated, NoWorker, StoreDown."""
    assert asking.serving.media is not None
    assert asking.serving.media.expansions is not None
    expansions, counts = asking.serving.media.expansions, Counter[MediaKind]()
    whole = Counter(samples[origin].media.kind for origin in origins)
    queries: dict[Shown, Sample] = {}
    places: dict[Origin, list[Shown]] = {}
    for origin in origins:
        sample = samples[origin]
        if (sign := signs.get(sample.media.kind)) is not None:
            number, of = counts[sign.kind] if sign.numbered else 0, whole[sign.kind] if sign.counted else 1
            if max(number + 1, of) > (
                most := asking.serving.settings.media_count
            ):  # an engine makes as many to tell of one
                problem = f"'{sample.param}': this model counts them, and takes {most} of them (XYLEM_MEDIA_COUNT)."
                raise RequestError(problem, param=sample.param)
            medium = Shown(sign, sample.media.shape, number, of)
            queries.setdefault(medium, sample)
            places.setdefault(origin, []).append(medium)
            counts[sign.kind] += 1

    async def learned(version: Shown, sample: Sample) -> list[int]:
        try:
            return await expansions.tokens(version, model.pools)
        except RequestError as exc:
            raise unfit(sample.media, exc.message, sample.param) from exc

    await expansions.look(queries)
    token_ids = dict(zip(queries, await side_by_side(learned(*one) for one in queries.items()), strict=True))

    def becomes(all_: list[Shown]) -> Learned:
        return Learned(all_[0].sign, {one.number: token_ids[one] for one in all_}, all_[0].of)

    return samples | {origin: replace(samples[origin], becomes=becomes(all_)) for origin, all_ in places.items()}


def _not_taken(model: Model, kind: OriginKind, param: str) -> RequestError:
    return RequestError(f"'{param}': the model '{model.name}' takes no {_NAMES[kind]}.", param=param)
