"""A team with a budget for a day: its key works until the money is spent. Wants XYLEM_ADMIN_KEY of the server."""

import os

import httpx
from openai import OpenAI, RateLimitError

url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1").removesuffix("/v1")
admin = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {os.environ['XYLEM_ADMIN_KEY']}"})
model = os.environ.get("MODEL", "my-model")


def change(method, path, body):
    return admin.request(method, path, json=body).raise_for_status().json()


change("PATCH", "/admin/prices", {"prices": {model: {"input": 100.0, "output": 100.0}}})  # for a million tokens
change("PUT", "/admin/tenants/search", {"budget": "$0.01/day"})
key = change("POST", "/admin/keys", {"name": "search-key", "tenant": "search"})["key"]

client = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
question = [{"role": "user", "content": "Tell me about Paris."}]
for number in range(100):
    try:
        client.chat.completions.create(model=model, messages=question, max_tokens=50)
    except RateLimitError as error:
        print(f"refused after {number} answers: {error.message}")
        break
else:
    raise SystemExit("the budget was never spent")
