"""Pipelines in the pools file, and the text that goes through them."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from app.dispatch.media.media_reader import Origin
from app.dispatch.models.aliases import Aliases
from app.openai.pipeline import ChatText, stage_request
from app.pools.pools_file import load_pools
from app.pools.schema import Alias, Stage
from tests.models import pools_error
from tests.refusals import refused

POOLS = """
pools:
  a: {model: writer, engine: mock}
  b: {model: painter, engine: mock, task: image}
  c: {model: ears, engine: mock, task: transcribe}
  d: {model: vectors, engine: mock, task: embed}
  e: {model: filmer, engine: mock, task: image, painting: {videos: true}}
  f: {model: silent, engine: mock, endpoints: [completions]}
aliases: {w: {primary: writer}}
pipelines: {x: {stages: [{model: writer}, {model: painter}]}, %s}
"""
W, P, E = "{model: writer}", "{model: painter}", "{model: ears}"


@pytest.mark.parametrize("stages", [[W, P], [E, W], [W, W], [E, W, W], [W, W, W, P]])
def test_stages_that_fit_are_taken(tmp_path: Path, stages: list[str]) -> None:
    (file := tmp_path / "pools.yaml").write_text(POOLS % f"y: {{stages: [{', '.join(stages)}]}}")
    pipeline = load_pools(file).pipelines["y"]
    assert [f"{{model: {stage.model}}}" for stage in pipeline.stages] == stages


@pytest.mark.parametrize(
    ("pipelines", "problem"),
    [
        (f"writer: {{stages: [{W}, {P}]}}", "pipelines.writer: there is a model of that name"),
        (f"w: {{stages: [{W}, {P}]}}", "pipelines.w: there is an alias of that name"),
        (f"y: {{stages: [{W}]}}", "pipelines.y.stages"),
        (f"y: {{stages: [{', '.join([W] * 9)}]}}", "pipelines.y.stages"),
        (f"y: {{stages: [{{model: nope}}, {P}]}}", "pipelines.y.stages.0.model=nope: is no model"),
        (f"y: {{stages: [{W}, {{model: w}}]}}", "pipelines.y.stages.1.model=w: is an alias"),
        (f"y: {{stages: [{{model: x}}, {P}]}}", "pipelines.y.stages.0.model=x: is a pipeline"),
        (f"y: {{stages: [{{model: y}}, {P}]}}", "pipelines.y.stages.0.model=y: is a pipeline"),
        (f"y: {{stages: [{P}, {W}]}}", "pipelines.y.stages.0.model=painter: its task is image"),
        (f"y: {{stages: [{W}, {P}, {W}]}}", "pipelines.y.stages.1.model=painter: its task is image"),
        (f"y: {{stages: [{W}, {E}]}}", "pipelines.y.stages.1.model=ears: its task is transcribe"),
        (f"y: {{stages: [{E}, {W}, {P}]}}", "pipelines.y.stages.2.model=painter: its task is image"),
        (f"y: {{stages: [{W}, {{model: vectors}}]}}", "pipelines.y.stages.1.model=vectors: its task is embed"),
        (f"y: {{stages: [{W}, {{model: filmer}}]}}", "pipelines.y.stages.1.model=filmer: paints videos"),
        (
            f"y: {{stages: [{W}, {{model: silent}}]}}",
            "stages.1.model=silent: the endpoints of its pool are without chat",
        ),
        (f"y: {{stages: [{{model: writer, template: hello}}, {P}]}}", "stages.0.template='hello': has no {input}"),
        (f"y: {{stages: [{W}, {{model: painter, instructions: hi}}]}}", "stages.1.instructions=hi: has no effect"),
        (f"y: {{stages: [{W}, {{model: writer, max_tokens: 9}}]}}", "stages.1.max_tokens=9: has no effect"),
        (f"y: {{stages: [{W}, {{model: painter, show: true}}]}}", "stages.1.show=True: has no effect"),
        (f"y: {{stages: [{{model: ears, template: '{{input}}'}}, {W}]}}", "stages.0.template={input}: has no effect"),
        (f"y: {{steps: [{W}, {P}]}}", "pipelines.y"),
    ],
)
def test_a_wrong_pipeline_is_named(tmp_path: Path, pipelines: str, problem: str) -> None:
    assert problem in pools_error(tmp_path, POOLS % pipelines)


def test_an_alias_made_at_run_time_takes_no_pipelines_name() -> None:
    assert Aliases({}, {}, {"x"}).problem("x", Alias(primary="writer")) == "there is a pipeline of that name"


def test_a_stage_is_asked_by_its_template_and_instructions() -> None:
    """Braces of a template's own stay as they are."""
    stage = Stage(model="writer", template='{"say": "{input}"}', instructions="Be brief.", max_tokens=7)
    assert orjson.loads(stage_request(stage, "{input} {x}")) == {
        "model": "writer",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": '{"say": "{input} {x}"}'},
        ],
        "max_completion_tokens": 7,
    }


def sound(data: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_each_sound_of_a_conversation_gets_its_text_in_its_place() -> None:
    """Equal ones are heard once."""
    messages = [
        {"role": "user", "content": [sound("AAAA"), said("?")]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": [said("and"), sound("BBBB"), sound("AAAA")]},
    ]
    chat = ChatText({"messages": messages})
    assert list(chat.sounds().values()) == ["messages.0.content.0", "messages.2.content.1"]
    heard_texts = {"AAAA": "one", "BBBB": "two"}
    chat.hear({Origin("audio", f"data:audio/wav;base64,{data}"): text for data, text in heard_texts.items()})
    assert chat.doc["messages"][0]["content"] == [said("one"), said("?")]
    assert chat.doc["messages"][2]["content"] == [said("and"), said("two"), said("one")]
    assert chat.text == "and\ntwo\none"
    assert not chat.sounds()


def test_a_stage_changes_the_users_last_text_and_leaves_the_pictures() -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    messages: list[Any] = [
        {"role": "user", "content": [said("a"), picture, said("b")]},
        {"role": "assistant", "content": "c"},
    ]
    chat = ChatText({"messages": messages})
    chat.text = f"<{chat.text}>"
    assert messages[0]["content"] == [said("<a\nb>"), picture]
    last_request = orjson.loads(chat.ask(Stage(model="last", template="Q: {input}")))
    assert (last_request["model"], last_request["messages"][0]["content"][0]) == ("last", said("Q: <a\nb>"))


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ([], {"role": "system", "content": "Be brief."}),
        ([{"role": "system", "content": "Be kind."}], {"role": "system", "content": "Be brief.\n\nBe kind."}),
        (
            [{"role": "developer", "content": [said("Be kind.")]}],
            {"role": "developer", "content": [said("Be brief."), said("Be kind.")]},
        ),
    ],
)
def test_instructions_of_the_last_stage_come_first(first: list[Any], expected: dict[str, Any]) -> None:
    """The client's own instructions are in the same message."""
    chat = ChatText({"messages": [*first, {"role": "user", "content": "x"}]})
    messages = orjson.loads(chat.ask(Stage(model="last", instructions="Be brief.")))["messages"]
    assert messages == [expected, {"role": "user", "content": "x"}]


def test_a_name_in_the_last_stages_body_is_the_one_that_the_client_knows() -> None:
    """The name stays the same, though instructions come before all messages, and the text before all pictures."""
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    chat = ChatText({"messages": [{"role": "user", "content": [{**picture}, said("a"), {**picture}]}]})
    chat.ask(Stage(model="last", template="Q: {input}", instructions="Be brief."))
    assert chat.doc["messages"][1]["content"] == [said("Q: a"), picture, picture]
    names = {
        "messages.1.content.1": "messages.0.content.0",
        "messages.1.content.2": "messages.0.content.2",
        "messages.1.content.2.image_url": "messages.0.content.2.image_url",
        "messages.1": "messages.0",
        "messages.0": "messages",
        "messages.1.content.0": "messages",
        "messages": "messages",
        "max_tokens": "max_tokens",
    }
    assert {name: chat.as_sent(name) for name in names} == names


def test_a_conversation_in_which_no_user_speaks_is_refused() -> None:
    with refused("messages", "'user'"):
        ChatText({"messages": [{"role": "system", "content": "x"}]})
