"""`make bench NAME=media`."""

from ops.bench.media import guards, images, report, second_question, seeing, sound
from ops.bench.parts import bench

PARTS = {
    "guards": guards.measured,
    "seeing": seeing.measured,
    "second_question": second_question.measured,
    "images": images.measured,
    "sound": sound.measured,
}

if __name__ == "__main__":
    bench("media", "Measure media: bad input, questions about pictures, painting, speech.", report, PARTS)
