"""The messages of a conversation: as clients send them, and as chat templates take them."""

from typing import Annotated, Any, Literal

from pydantic import Field

from app.openai.body import MOST, Body, Some
from app.openai.neutral import NEUTRAL_OF_MESSAGES, Refused, neutral


class TextPart(Body):
    type: Annotated[Literal["text"], Refused("content parts of type")]
    text: str


# In this order, an error is the list's.
Content = Annotated[Some[TextPart], Field(max_length=MOST)] | str


class Message(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None
    name: Annotated[str, Field(max_length=256)] | None = None

    def for_template(self) -> dict[str, Any]:
        """Templates know no developer, OpenAI's newer name of the system role, and want text."""
        content = self.content or ""
        if not isinstance(content, str):
            content = "\n".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": content} | ({"name": self.name} if self.name else {})


class PromptMessage(Message):
    role: Literal["system", "developer", "user"]
    content: Content


@neutral(NEUTRAL_OF_MESSAGES)
class AssistantMessage(Message):
    """An earlier answer. Without content, as it is when it only called tools, it is an empty text."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: str | None = None

    def for_template(self) -> dict[str, Any]:
        made = super().for_template()
        return made if self.reasoning_content is None else made | {"reasoning_content": self.reasoning_content}


Messages = Some[Annotated[PromptMessage | AssistantMessage, Field(discriminator="role")]]
