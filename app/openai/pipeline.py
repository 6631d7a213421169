"""The text that goes through a pipeline: in a chat's body, decoded from JSON and valid, and between stages. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from app import json_bytes
from app.dispatch.media.media_reader import Origin
from app.errors import RequestError
from app.openai.content_parts import AudioPart
from app.pools.schema import Stage

_SYSTEM = ("system", "developer")


def stage_request(stage: Stage, text: str) -> bytes:
    """The chat that a stage answers which is not the last."""
    messages = [{"role": "user", "content": stage.asked(text)}]
    doc: dict[str, Any] = {"model": stage.model, "messages": messages}
    if stage.instructions is not None:
        messages.insert(0, {"role": "system", "content": stage.instructions})
    if stage.max_tokens is not None:
        doc["max_completion_tokens"] = stage.max_tokens
    return orjson.dumps(doc)


class ChatText:
    """The text in a chat: that of the last message whose role is `user`."""

    def __init__(self, doc: dict[str, Any]) -> None:
        """`doc`: the body, which is changed. Raises: RequestError without such a message."""
        self.doc, self._messages = doc, doc["messages"]
        questions = (message for message in reversed(self._messages) if message["role"] == "user")
        self._asked: dict[str, Any] | None = next(questions, None)
        if self._asked is None:
            raise RequestError("'messages': none has the role 'user'.", param="messages")
        self._sent = [*self._places()]  # as the client named them

    def sounds(self) -> dict[Origin, str]:
        """Sounds of all messages, each with the name of its first part."""
        by_origin: dict[Origin, str] = {}
        for where, part in self._parts():
            if part["type"] == "input_audio":
                by_origin.setdefault(_origin(part), where)
        return by_origin

    def hear(self, texts: Mapping[Origin, str]) -> None:
        """Puts texts in the places of sounds."""
        for _where, part in self._parts():
            if part["type"] == "input_audio":
                text = texts[_origin(part)]
                part.clear()
                part.update(type="text", text=text)

    @property
    def text(self) -> str:
        assert self._asked is not None
        content = self._asked["content"]
        return content if isinstance(content, str) else "\n".join(p["text"] for p in content if p["type"] == "text")

    @text.setter
    def text(self, text: str) -> None:
        """Pictures stay."""
        assert self._asked is not None
        content = self._asked["content"]
        if isinstance(content, str):
            self._asked["content"] = text
        else:
            self._asked["content"] = [{"type": "text", "text": text}, *(p for p in content if p["type"] != "text")]

    def ask(self, stage: Stage) -> bytes:
        """The body for the last stage."""
        self.doc["model"] = stage.model
        if "template" in stage.model_fields_set:
            self.text = stage.asked(self.text)
        if stage.instructions is not None:
            self._instruct(stage.instructions)
        return json_bytes.dumps(self.doc)

    def as_sent(self, name: str) -> str:
        """A name in the last stage's body as the client has it; "messages" for what the client hasn't sent."""
        for where, one in reversed([*self._places()]):
            if f"{name}.".startswith(f"{where}."):
                return next(
                    (client_name + name.removeprefix(where) for client_name, same in self._sent if same is one),
                    "messages",
                )
        return name

    def _instruct(self, instructions: str) -> None:
        """Many templates take one system message, and only as the first."""
        first = self._messages[0]
        if first["role"] not in _SYSTEM:
            self._messages.insert(0, {"role": "system", "content": instructions})
        elif isinstance(first["content"], str):
            first["content"] = f"{instructions}\n\n{first['content']}"
        else:
            first["content"].insert(0, {"type": "text", "text": instructions})

    def _places(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Messages, and then parts, each with its name."""
        yield from ((f"messages.{i}", message) for i, message in enumerate(self._messages))
        yield from self._parts()

    def _parts(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for i, message in enumerate(self._messages):
            if isinstance(content := message.get("content"), list):
                for j, part in enumerate(content):
                    yield f"messages.{i}.content.{j}", part


def _origin(part: dict[str, Any]) -> Origin:
    return AudioPart.model_validate(part).origin
