"""`make bench NAME=media`."""

from ops.bench.media import flood, guards, images, report, second_question, seeing, sound
from ops.bench.parts import bench

PARTS = {
    "guards": guards.measured,
    "seeing": seeing.measured,
    "second_question": second_question.measured,
    "flood": flood.measured,
    "images": images.measured,
    "sound": sound.measured,
}

if __name__ == "__main__":
    bench("media", "Measure media: bad input, pictures, encode workers, painting, speech.", report, PARTS)
