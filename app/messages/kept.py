"""`KeptRequest`, from one API replica to another, in `kept:<id>`; its answer is in `log:<id>`, as lists of events."""

from msgspec import Struct

from app.ids import KeyId, RequestId, TenantId
from app.messages.media import Media
from app.messages.trace import TracePlace, log_names
from app.messages.wire import decoder


class ResponseContext(Struct, frozen=True, array_like=True):
    """The context that is needed to read a response's answer, besides its request."""

    begun: bool = False  # its text begins inside reasoning
    earlier_calls: int = 0  # tool calls in the conversation before
    history: bytes = b""  # JSON: the items before its own, as they were then
    conversation: str = ""  # the conversation that gets its items when it has ended
    over: bool = False  # its text begins behind reasoning


class StoredChat(Struct, frozen=True, array_like=True):
    """The fields by which stored chats are found."""

    model: str
    metadata: dict[str, str] = {}


class KeptRequest(Struct, frozen=True, array_like=True):
    """A request whose answer outlives its connection: all that another API replica needs to continue it."""

    id: RequestId
    kind: str  # `EndpointRow.kind`, which parses the body
    body: bytes  # JSON: the client's request, as it was parsed
    created: float  # seconds since the epoch, by Redis' clock
    deadline: float
    key: KeyId = KeyId("")  # `ApiKey.owner` of the API key that it came with
    background: bool = False
    x_request_id: str = ""  # as Job's
    response: ResponseContext = ResponseContext()
    chat: StoredChat | None = None  # once it is whole, clients find it in the list of chats
    media: list[Media] = []  # of its parts, in their order: what was at a URL when the request came
    trace: TracePlace | None = None
    tenant: TenantId = TenantId("default")

    @property
    def names(self) -> dict[str, str]:
        """The fields that all its log lines have."""
        return log_names(self.x_request_id, self.trace.trace if self.trace else "")


decode_kept = decoder(KeptRequest)
decode_stored_chat = decoder(StoredChat)
