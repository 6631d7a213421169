"""Pictures of a few plain shapes, and questions about them with their answers: all drawn from a seed.

The eyes (`eyes.py`) and the painter (`painter.py`) learn from these pictures, and `ops/bench/media/seen.py` asks
about pictures of a seed that neither has met.
"""

import random
from dataclasses import dataclass, replace
from typing import Literal

from PIL import Image, ImageDraw

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 170, 60),
    "blue": (40, 70, 220),
    "yellow": (240, 210, 40),
    "black": (20, 20, 20),
    "orange": (250, 140, 20),
}
SHAPES = ("circle", "square", "triangle")
NUMBERS = ("One", "Two", "Three", "Four")
EDGE = 224  # pixels

Side = Literal["left", "middle", "right"]


@dataclass(frozen=True)
class Thing:
    """One shape. `x`, `y` (the centre) and `radius` are parts of the picture's edge."""

    colour: str
    shape: str
    x: float
    y: float
    radius: float

    @property
    def name(self) -> str:
        return f"{'an' if self.colour == 'orange' else 'a'} {self.colour} {self.shape}"

    @property
    def side(self) -> Side:
        return "left" if self.x < 0.42 else "right" if self.x > 0.58 else "middle"

    @property
    def place(self) -> str:
        return "in the middle" if self.side == "middle" else f"on the {self.side}"


@dataclass(frozen=True)
class Scene:
    """One thing, or two to four alike, or two different ones of which the first is on the left."""

    things: tuple[Thing, ...]

    @property
    def alike(self) -> bool:
        return len({(thing.colour, thing.shape) for thing in self.things}) == 1

    @property
    def caption(self) -> str:
        """A fixed word order, which is easy to learn: `one red circle left, one blue square right`."""
        first = self.things[0]
        if self.alike and len(self.things) > 1:
            return f"{NUMBERS[len(self.things) - 1].lower()} {first.colour} {first.shape}s"
        return ", ".join(f"one {thing.colour} {thing.shape} {thing.side}" for thing in self.things)


@dataclass(frozen=True)
class Question:
    kind: Literal["what", "colour", "shape", "count", "side"]
    text: str
    answer: str


def draw_scene(rng: random.Random) -> Scene:
    """Half of the scenes have one thing, a quarter several alike, a quarter two different ones."""
    kind = rng.random()
    colour, shape = _kind_of_thing(rng)
    if kind < 0.5:
        return Scene((_beside(rng, colour, shape, rng.choice(("left", "middle", "right")), (0.14, 0.32)),))
    if kind < 0.75:
        number = rng.randint(2, 4)
        while True:  # until none covers another one: a few tries
            radius = rng.uniform(0.11, 0.15)
            things = tuple(_place(rng, colour, shape, (radius, radius)) for _ in range(number))
            if all(_apart(a, b) for i, a in enumerate(things) for b in things[:i]):
                return Scene(things)
    while True:
        left_thing = _beside(rng, colour, shape, "left", (0.14, 0.22))
        right_thing = _beside(rng, *_kind_of_thing(rng), "right", (0.14, 0.22))
        if _apart(left_thing, right_thing) and _differ(left_thing, right_thing):
            return Scene((left_thing, right_thing))


def draw_thing(rng: random.Random, colour: str, shape: str) -> Scene:
    return Scene((_place(rng, colour, shape, (0.15, 0.34)),))


def draw_picture(rng: random.Random, scene: Scene, edge: int = EDGE) -> Image.Image:
    """The picture, of `edge` × `edge` pixels; no two of a scene are alike in shade."""
    paper = tuple(255 - rng.randint(0, 12) for _ in range(3))
    picture = Image.new("RGB", (2 * edge, 2 * edge), paper)  # twice as large: smooth edges
    pen = ImageDraw.Draw(picture)
    shades = {c: tuple(min(255, max(0, v + rng.randint(-14, 14))) for v in rgb) for c, rgb in COLOURS.items()}
    for thing in scene.things:
        x, y, r = (2 * edge * v for v in (thing.x, thing.y, thing.radius))
        if thing.shape == "circle":
            pen.ellipse([x - r, y - r, x + r, y + r], fill=shades[thing.colour])
        elif thing.shape == "square":
            pen.rectangle([x - r, y - r, x + r, y + r], fill=shades[thing.colour])
        else:
            pen.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=shades[thing.colour])
    return picture.resize((edge, edge), Image.Resampling.BOX)


def ask(rng: random.Random, scene: Scene) -> list[Question]:
    """One question of each kind that fits the scene, in random words, in random order."""
    first, last, n = scene.things[0], scene.things[-1], len(scene.things)
    one = rng.choice(scene.things)
    plural = n > 1 and scene.alike
    colour, circle = rng.choice([("colour", one.shape), ("color", one.shape)])
    if n == 1:
        whole = _capital(first.name)
    elif plural:
        whole = f"{NUMBERS[n - 1]} {first.colour} {first.shape}s"
    else:
        whole = f"{_capital(first.name)} and {last.name}"
    questions = [
        Question("what", rng.choice(_WHAT), f"{whole}."),
        Question("count", rng.choice(_COUNT), f"{NUMBERS[n - 1]}."),
    ]
    if plural:
        questions += [
            Question(
                "colour", rng.choice([f"What {colour} are they?", f"What {colour} are the shapes?"]), _say(first.colour)
            ),
            Question(
                "shape", rng.choice(["What shape are they?", "Which shapes are these?"]), f"{_capital(first.shape)}s."
            ),
        ]
    elif n == 1:
        questions += [
            Question(
                "colour", rng.choice([f"What {colour} is it?", f"What {colour} is the {circle}?"]), _say(first.colour)
            ),
            Question("shape", rng.choice(["What shape is it?", "Which shape is this?"]), f"A {first.shape}."),
            Question("side", rng.choice(["Where is it?", f"Where is the {circle}?"]), f"{_capital(first.place)}."),
        ]
    else:
        questions.append(Question("side", f"What is on the {one.side}?", f"{_capital(one.name)}."))
        if first.shape != last.shape:
            questions.append(Question("colour", f"What {colour} is the {circle}?", _say(one.colour)))
        if first.colour != last.colour:
            questions.append(Question("shape", f"What shape is the {one.colour} one?", f"A {one.shape}."))
    rng.shuffle(questions)
    return questions


_WHAT = (
    "What is in this picture?",
    "What do you see?",
    "What is this?",
    "Describe the picture.",
    "What does the image show?",
)
_COUNT = ("How many shapes are there?", "How many shapes are in the picture?", "How many things do you see?")


def _say(colour: str) -> str:
    return f"{_capital(colour)}."


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _kind_of_thing(rng: random.Random) -> tuple[str, str]:
    return rng.choice(list(COLOURS)), rng.choice(SHAPES)


def _beside(rng: random.Random, colour: str, shape: str, side: Side, radii: tuple[float, float]) -> Thing:
    """Clearly on one side, or in the middle: nobody could tell by a pixel."""
    thing = _place(rng, colour, shape, radii)
    least, most = {
        "left": (thing.radius + 0.02, 0.36),
        "middle": (0.45, 0.55),
        "right": (0.64, 0.98 - thing.radius),
    }[side]
    return replace(thing, x=rng.uniform(least, most))


def _place(rng: random.Random, colour: str, shape: str, radii: tuple[float, float]) -> Thing:
    radius = rng.uniform(*radii)
    x, y = (rng.uniform(radius + 0.02, 0.98 - radius) for _ in range(2))
    return Thing(colour, shape, x, y, radius)


def _apart(a: Thing, b: Thing) -> bool:
    reach = a.radius + b.radius + 0.03
    return abs(a.x - b.x) > reach or abs(a.y - b.y) > reach


def _differ(a: Thing, b: Thing) -> bool:
    return (a.colour, a.shape) != (b.colour, b.shape)
