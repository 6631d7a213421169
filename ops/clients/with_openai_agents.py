"""openai-agents: an agent with a tool, and one with an output type, whole and streamed; over Responses and chat."""

import asyncio

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel


class City(BaseModel):
    name: str
    people: int


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return "21 degrees" if city == "Paris" else "unknown"


async def tried(model):
    agent = Agent(name="Forecaster", instructions="Be brief.", tools=[get_weather], model=model)
    whole = await Runner.run(agent, "How is the weather in Paris?")
    print([type(item).__name__ for item in whole.new_items], whole.final_output)
    stream = Runner.run_streamed(agent, "How is the weather in Paris?")
    async for _ in stream.stream_events():
        pass
    assert whole.final_output == stream.final_output == "It is 21 degrees in Paris."
    typed_answer = await Runner.run(Agent(name="Geographer", output_type=City, model=model), "How large is Paris?")
    print(typed_answer.final_output)
    assert typed_answer.final_output == City(name="Paris", people=2_100_000)


async def main():
    set_tracing_disabled(True)  # traces go to OpenAI
    client = AsyncOpenAI(max_retries=0)
    for model in (OpenAIResponsesModel("mock", client), OpenAIChatCompletionsModel("mock", client)):
        print(type(model).__name__)
        await tried(model)


asyncio.run(main())
