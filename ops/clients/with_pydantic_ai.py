"""pydantic-ai: an agent with a tool and an output type, whole and streamed; over chat and Responses."""

import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel


class City(BaseModel):
    name: str
    people: int


class Report(BaseModel):
    city: str
    degrees: int


def get_weather(city: str) -> str:
    """The weather of a city."""
    return {"Paris": "21 degrees", "Rome": "31 degrees"}.get(city, "unknown")


async def tried(model):
    agent = Agent(model, tools=[get_weather])
    answer = (await agent.run("How is the weather in Paris?")).output
    print(answer)
    assert answer.endswith("It is 21 degrees in Paris."), answer
    reporter = Agent(model, tools=[get_weather], output_type=Report)
    async with reporter.run_stream("Report on Rome.") as stream:
        stream_output = await stream.get_output()
    report = (await reporter.run("Report on Rome.")).output
    print(report)
    assert report == stream_output == Report(city="Rome", degrees=31)
    native = Agent(model, output_type=NativeOutput(City))
    city = (await native.run("How large is Paris?")).output
    print(city)
    assert city == City(name="Paris", people=2_100_000)


async def main():
    for model in (OpenAIChatModel("mock"), OpenAIResponsesModel("mock")):
        print(type(model).__name__)
        await tried(model)


asyncio.run(main())
