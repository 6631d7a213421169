"""The words that several messages use."""

from typing import Literal, get_args

FinishReason = Literal["stop", "length", "abort"]
Role = Literal["both", "prefill", "decode", "encode"]
Task = Literal["generate", "embed", "classify", "image", "transcribe"]
StageKind = Literal["prefill", "decode", "encode", "paint", "encode_pictures"]  # encode: makes vectors of texts
PictureFormat = Literal["png", "jpeg", "webp", "mp4"]
ExpertAction = Literal["start", "stop", "dump"]  # see `engines.base.ExpertRecorder`
PauseMode = Literal["abort", "wait", "keep"]  # what becomes of running requests: see `engines.base.Pauser`
# When a beam search ends that has as many answers as it is wide: at once; when a better one is unlikely; or when the
# running beams can't become better, as long as they may be.
EarlyStopping = bool | Literal["never"]
GrammarKind = Literal["json", "regex", "choice", "grammar", "tag"]
GRAMMAR_KINDS: tuple[GrammarKind, ...] = get_args(GrammarKind)
TierUse = Literal["all", "host", "none"]  # from which tiers an engine loads KV; `host`: not from the store
