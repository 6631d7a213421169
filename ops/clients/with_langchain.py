"""langchain: bound tools, an agent of its own, structured output in both ways; over three APIs."""

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class City(BaseModel):
    """A city."""

    name: str
    people: int


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return "21 degrees" if city == "Paris" else "unknown"


def texts(message):
    return "".join(block["text"] for block in message.content_blocks if block["type"] == "text")


ANSWER = "It is 21 degrees in Paris."
question = HumanMessage("How is the weather in Paris?")
models = {
    "chat": ChatOpenAI(model="mock", max_retries=0),
    "responses": ChatOpenAI(model="mock", max_retries=0, use_responses_api=True),
    "messages": ChatAnthropic(model="mock", max_tokens=500, max_retries=0),
}
for name, model in models.items():
    bound = model.bind_tools([get_weather])
    said = bound.invoke([question])
    (call,) = said.tool_calls
    print(name, call["name"], call["args"])
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    answer = bound.invoke([question, said, ToolMessage("21 degrees", tool_call_id=call["id"])])
    print(name, texts(answer))
    assert texts(answer) == ANSWER

    streamed = None
    for chunk in bound.stream([question]):
        streamed = chunk if streamed is None else streamed + chunk
    assert [c["args"] for c in streamed.tool_calls] == [{"city": "Paris"}], streamed

    last = create_agent(model, [get_weather]).invoke({"messages": [question]})["messages"][-1]
    print(name, "agent:", texts(last))
    assert texts(last) == ANSWER

    city = model.with_structured_output(City, method="json_schema").invoke("How large is Paris?")
    print(name, city)
    assert city == City(name="Paris", people=2_100_000)
    city = model.with_structured_output(City, method="function_calling").invoke("Call it for Oslo.")
    print(name, city)
    assert city == City(name="Oslo", people=700_000)
