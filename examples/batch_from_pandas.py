"""A batch from a data frame: a request for each row, and the answers beside the rows."""

import json
import os
import time

import pandas as pd
from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
model = os.environ.get("MODEL", "my-model")
frame = pd.DataFrame({"city": ["Paris", "Rome", "Oslo"]})


def line(row, city):
    question = [{"role": "user", "content": f"Tell me about {city}."}]
    body = {"model": model, "messages": question, "max_tokens": 20}
    return {"custom_id": str(row), "method": "POST", "url": "/v1/chat/completions", "body": body}


lines = "\n".join(json.dumps(line(row, city)) for row, city in frame.city.items())
file = client.files.create(file=("cities.jsonl", lines.encode()), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="1h")
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)

answers = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
contents = {
    int(answer["custom_id"]): answer["response"]["body"]["choices"][0]["message"]["content"] for answer in answers
}
frame["answer"] = pd.Series(contents)  # answers may come in another order than rows
print(frame)
