"""How `/openapi.json` is made. What it says is in the acceptance tests."""

import asyncio
import threading
from typing import Any

import httpx
from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from app.api.http.document import documented
from app.settings import Settings


async def test_making_the_document_holds_nobody_and_is_done_once() -> None:
    """It takes more than a second, and needs no key: it held all streams of a replica for as long."""
    go_on, made = threading.Event(), list[bool]()

    class Slow(BaseModel):
        @classmethod
        def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> Any:
            made.append(go_on.wait(20))
            return handler(core)

    app = documented(Settings(), title="a", version="1")

    @app.get("/slow")
    async def slow() -> Slow:
        return Slow()

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as http:
        asked = [asyncio.create_task(http.get("/openapi.json")) for _ in range(3)]
        await asyncio.sleep(0.05)
        go_on.set()
        answers = await asyncio.gather(*asked)
        assert "/slow" in (await http.get("/openapi.json")).json()["paths"]
    assert {answer.status_code for answer in answers} == {200}
    assert made
    assert all(made), "nothing else went on meanwhile"
    assert len({answer.content for answer in answers}) == 1
