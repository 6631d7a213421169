"""The items before a request's own. They are kept with it, so that any replica can continue it."""

from collections.abc import Iterable, Mapping

from pydantic import Field

from app.errors import RequestError
from app.openai.responses.input_items import InputItem, ItemReference, Items
from app.schemas.body import MOST, Body


class History(Body):
    items: Items = Field(default_factory=list)
    referenced: dict[str, InputItem] = Field(default_factory=dict)  # by the id that the request's input names

    def understood(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()

    def of(self, items: Iterable[InputItem]) -> list[InputItem]:
        """All items of a request, in their order. Raises: RequestError."""
        return [*self.items, *resolved(items, self.referenced)]


def resolved(
    own_items: Iterable[InputItem], references: Mapping[str, InputItem], field: str = "input"
) -> list[InputItem]:
    """`own_items`, with references replaced. `field`: the request's, that has the items. Raises: RequestError."""
    items: list[InputItem] = []
    for i, item in enumerate(own_items):
        if not isinstance(item, ItemReference):
            items.append(item)
        elif item.id in references:
            items.append(references[item.id])
        else:
            raise RequestError(f"'{field}.{i}.id': no item of that id is kept.", param=f"{field}.{i}.id")
    return items


def check_length(items: int, size: int, most_bytes: int, param: str) -> None:
    """Raises: RequestError."""
    if items > MOST or size > most_bytes:
        raise RequestError(
            f"'{param}': the conversation before has more than {MOST} items, or {most_bytes} bytes.", param=param
        )
