"""Qwen2-Audio: a token for each 40 ms of a sound, which its encoder takes up to half a minute of."""

from msgspec import Struct

from app.media.sound import RATE


class Qwen2Audio(Struct, frozen=True):
    token_id: int
    hop: int  # samples of one spectrum
    most: int  # samples
    marker: str = "<|audio_bos|><|AUDIO|><|audio_eos|>"

    def tokens(self, samples: int) -> list[int]:
        if samples > self.most:
            raise ValueError(f"the model hears at most {self.most / RATE:g} s of a sound")
        spectra = -(-samples // self.hop)
        count = ((spectra - 1) // 2 - 1) // 2 + 1  # a convolution and a mean, each of which halves
        if count < 1:
            raise ValueError("it is too short for the model to hear")
        return [self.token_id] * count
