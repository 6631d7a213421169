"""The pictures from which the shapes models learn, and by which they are judged."""

import random
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.cli.stack import _SHIPPED
from app.demo_models.model_folder import prepare
from app.demo_models.shapes import PROOF
from ops.bench.media.painted import judge
from ops.bench.media.seen import exam, is_right
from ops.shapes.pictures import COLOURS, SHAPES, Question, ask, draw_picture, draw_scene, draw_thing

FOLDER = Path(__file__).parents[2] / "app/demo_models/shapes"


def test_folders_of_other_weights_are_made_anew() -> None:
    """The folders would otherwise stay as an older version of this package made them."""
    expected_digests = {"eyes": "4c6e29a922135eb6", "painter": "2f265c5d6ef62e0c"}
    digests = {
        name: sha256((FOLDER / f"{name}.safetensors").read_bytes()).hexdigest()[:16] for name in expected_digests
    }
    assert digests == expected_digests, "other weights need another number in PROOF, here and in app/cli/stack.py"
    assert PROOF == "weights-2"
    assert {_SHIPPED[name].proof for name in ("shapes", "shapes-painter")} == {PROOF}


def test_a_folder_without_its_proof_is_made_anew(tmp_path: Path) -> None:
    dest = tmp_path / "model"
    prepare(dest, lambda folder: (folder / "config.json").write_text("old") and None)
    prepare(dest, lambda folder: (folder / "config.json").write_text("new") and None, "weights-2")
    prepare(dest, lambda folder: (folder / "config.json").write_text("not again") and None, "weights-2")
    assert ((dest / "config.json").read_text(), (dest / "weights-2").exists()) == ("new", True)


def test_a_seed_gives_the_same_pictures_and_questions_again() -> None:
    """No two measurements could be compared otherwise."""
    first, second, other = ([(p.tobytes(), q) for p, q in exam(seed, 5)] for seed in (7, 7, 8))
    assert first == second != other


def test_every_kind_of_question_is_asked() -> None:
    """None so rarely that it says nothing."""
    kinds = [question.kind for _, question in exam(1, 300)]
    assert set(kinds) == {"what", "colour", "shape", "count", "side"}
    assert min(kinds.count(kind) for kind in set(kinds)) >= 20


@pytest.mark.parametrize("seed", range(40))
def test_an_answer_says_what_is_drawn(seed: int) -> None:
    """The scene has one thing, judged by the pixels alone; the judge is also the painter's."""
    rng = random.Random(seed)
    scene = draw_thing(rng, rng.choice(list(COLOURS)), rng.choice(SHAPES))
    verdict = judge(draw_picture(rng, scene, 64))
    answers = {question.kind: question.answer.lower() for question in ask(rng, scene)}
    assert verdict is not None
    assert (verdict.colour in answers["colour"], verdict.shape in answers["shape"]) == (True, True)
    assert {verdict.colour, verdict.shape} <= set(answers["what"].rstrip(".").split())
    assert answers["count"] == "one."


def test_things_of_a_scene_do_not_cover_each_other() -> None:
    """Counting them would be a guess."""
    rng = random.Random(3)
    for _ in range(200):
        things = draw_scene(rng).things
        for i, a in enumerate(things):
            for b in things[:i]:
                assert max(abs(a.x - b.x), abs(a.y - b.y)) > a.radius + b.radius


def test_an_empty_or_torn_picture_is_no_shape() -> None:
    """The judge finds neither colour nor shape in paper, nor one of our shapes in noise."""
    noise = np.random.default_rng(1).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    assert judge(Image.new("RGB", (64, 64), "white")) is None
    verdict = judge(Image.fromarray(noise))
    assert verdict is None or verdict.shape == "unknown"


def test_an_answer_is_right_by_its_words() -> None:
    question = Question("what", "What is this?", "A red circle.")
    assert is_right(" a red circle", question)
    assert not is_right("A red circle and a blue square.", question)
    assert not is_right("A blue circle.", question)
