"""Text that clients pass back to us as they got it.

It is encoded, not encrypted: it hides nothing, since the answer shows its reasoning besides, and proves nothing, since
a client may say what it likes in its other items.
"""

import base64
import binascii

_MARK = "xylem1."


def enclose(text: str) -> str:
    return _MARK + base64.urlsafe_b64encode(text.encode()).decode()


def disclose(given: str) -> str:
    """Raises: ValueError."""
    if not given.startswith(_MARK):
        raise ValueError("it is none that this server made")
    try:
        return base64.b64decode(given.removeprefix(_MARK), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("it is none that this server made") from None
