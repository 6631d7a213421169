"""Signatures of calls to others' servers, by Standard Webhooks, as OpenAI's clients check."""

import base64
import hashlib
import hmac


def signature(secret: str, id_: str, stamp: int, body: bytes) -> str:
    """`secret`: "whsec_" and a key in base64. `stamp`: seconds since the epoch."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(key, b"%s.%d.%s" % (id_.encode(), stamp, body), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def signed(secret: str | None, id_: str, stamp: int, body: bytes) -> dict[str, str]:
    """The headers of a call with a JSON body; signed if there is a secret."""
    headers = {"content-type": "application/json", "webhook-id": id_, "webhook-timestamp": str(stamp)}
    return headers if secret is None else headers | {"webhook-signature": signature(secret, id_, stamp, body)}
