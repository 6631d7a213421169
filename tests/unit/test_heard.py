"""The length of the sound that counts as heard."""

import numpy as np

from app.engines.heard import heard_samples


def test_a_silent_end_does_not_count() -> None:
    """The end is found to 20 ms. Hiss is not silent, and neither is a scrap at the end."""
    samples = np.zeros(16_000, "f4")
    assert heard_samples(samples) == heard_samples(samples[:0]) == heard_samples(samples[:100]) == 0
    samples[3_000] = 0.5
    assert heard_samples(samples) == 3_200
    assert heard_samples(samples[:3_100]) == 3_100
    noise = np.random.default_rng(1)
    assert heard_samples(samples + noise.normal(0, 3e-4, 16_000).astype("f4")) == 3_200
    assert heard_samples(samples + noise.normal(0, 3e-3, 16_000).astype("f4")) == 16_000
