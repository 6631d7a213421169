"""Generation of `/openapi.json`. The acceptance tests check its content."""

import asyncio
import threading
from typing import Any

import httpx
from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from app.api.http.document import documented
from app.settings import Settings


async def test_making_the_document_holds_nobody_and_is_done_once() -> None:
    """Generation takes more than a second and needs no key: all streams of a replica were held up for as long."""
    go_on, waits = threading.Event(), list[bool]()

    class Slow(BaseModel):
        @classmethod
        def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> Any:
            waits.append(go_on.wait(20))
            return handler(core)

    app = documented(Settings(), title="a", version="1")

    @app.get("/slow")
    async def slow() -> Slow:
        return Slow()

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as http:
        tasks = [asyncio.create_task(http.get("/openapi.json")) for _ in range(3)]
        await asyncio.sleep(0.05)
        go_on.set()
        answers = await asyncio.gather(*tasks)
        assert "/slow" in (await http.get("/openapi.json")).json()["paths"]
    assert {answer.status_code for answer in answers} == {200}
    assert waits
    assert all(waits), "nothing else went on meanwhile"
    assert len({answer.content for answer in answers}) == 1
