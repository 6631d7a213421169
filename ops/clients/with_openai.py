"""The openai package: a parsed schema, streamed tools and their results, through chat and Responses."""

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel


class City(BaseModel):
    name: str
    people: int


class get_weather(BaseModel):  # noqa: N801 (the tool's name)
    """The weather of a city."""

    city: str


ANSWER = "It is 21 degrees in Paris."
PARIS = City(name="Paris", people=2_100_000)
large = [{"role": "user", "content": "How large is Paris?"}]
question = {"role": "user", "content": "How is the weather in Paris?"}
client = OpenAI(max_retries=0)

parsed = client.chat.completions.parse(model="mock", messages=large, response_format=City)
print(parsed.choices[0].message.parsed)
assert parsed.choices[0].message.parsed == PARIS

tools = [pydantic_function_tool(get_weather)]
with client.chat.completions.stream(model="mock", messages=[question], tools=tools) as stream:
    said = stream.get_final_completion().choices[0].message
(call,) = said.tool_calls
print(call.function.parsed_arguments)
assert call.function.parsed_arguments == get_weather(city="Paris")
result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
turns = [*large, parsed.choices[0].message, question, said, result]  # with what the package parsed
answer = client.chat.completions.create(model="mock", messages=turns, tools=tools).choices[0].message.content
print(answer)
assert answer == ANSWER

parsed = client.responses.parse(model="mock", input=large, text_format=City)
print(parsed.output_parsed)
assert parsed.output_parsed == PARIS

parameters = get_weather.model_json_schema() | {"additionalProperties": False}
tools = [{"type": "function", "name": "get_weather", "strict": True, "parameters": parameters}]
with client.responses.stream(model="mock", input=[question], tools=tools) as stream:
    first = stream.get_final_response()
(call,) = [item for item in first.output if item.type == "function_call"]
print(call.arguments)
assert get_weather.model_validate_json(call.arguments) == get_weather(city="Paris")
result = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
whole = [*large, *parsed.output, question, *first.output, result]
assert client.responses.create(model="mock", input=whole, tools=tools, store=False).output_text == ANSWER
then = client.responses.create(model="mock", input=[result], tools=tools, previous_response_id=first.id)
print(then.output_text)
assert then.output_text == ANSWER
