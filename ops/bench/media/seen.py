"""`python -m ops.bench.media.seen URL`: how many of 50 pictures of a fresh seed a model sees rightly.

Any OpenAI-compatible server will do. Each picture comes with one question; an answer is right if its words are those
of the expected one. The last line printed is JSON.
"""

import base64
import io
import json
import random
import re
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import typer
from PIL import Image

from ops.shapes.pictures import Question, ask, draw_picture, draw_scene

_PICTURES = 50


def seen(client: httpx.Client, model: str, seed: int, pictures: int = _PICTURES) -> dict[str, Any]:
    """`client` has the server's address. Raises: httpx.HTTPError if a question gets no answer."""
    wrong, answers = [], []
    for picture, question in exam(seed, pictures):
        answer = said(client, model, picture, question.text)
        answers.append(answer)
        if not is_right(answer, question):
            wrong.append({"kind": question.kind, "question": question.text, "wanted": question.answer, "got": answer})
    return {"seen": pictures - len(wrong), "seed": seed, "wrong": wrong, "answers": answers}


def exam(seed: int, pictures: int) -> Iterator[tuple[Image.Image, Question]]:
    """Pictures and a question about each. The eyes were trained on seeds of their own: these are none of theirs."""
    for number in range(pictures):
        rng = random.Random(f"exam {seed} {number}")
        scene = draw_scene(rng)
        yield draw_picture(rng, scene), ask(rng, scene)[0]


def is_right(answer: str, question: Question) -> bool:
    """Whether all words are the same; capitals and full stops don't count."""
    return _words(answer) == _words(question.answer)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def said(client: httpx.Client, model: str, picture: Image.Image, question: str) -> str:
    """The model's likeliest answer. Raises: httpx.HTTPError."""
    png = io.BytesIO()
    picture.save(png, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
    content = [{"type": "text", "text": question}, {"type": "image_url", "image_url": {"url": url}}]
    body = {
        "model": model,
        "temperature": 0,
        "max_tokens": 24,
        "messages": [{"role": "user", "content": content}],
    }
    answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    return str(answer["choices"][0]["message"]["content"])


def main(
    url: str,
    model: str = "shapes",
    seed: Annotated[int | None, typer.Option(help="A fresh one if not given.")] = None,
    pictures: int = _PICTURES,
) -> None:
    seed = random.SystemRandom().randrange(10**9) if seed is None else seed
    try:
        with httpx.Client(base_url=url, timeout=120) as client:
            result = seen(client, model, seed, pictures)
    except httpx.HTTPError as exc:
        raise SystemExit(f"{url}: {exc}") from exc
    for mistake in result["wrong"]:
        print(json.dumps(mistake))
    print(json.dumps({key: result[key] for key in ("seen", "seed")}))


if __name__ == "__main__":
    typer.run(main)
