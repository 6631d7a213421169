"""The charset of a form: its texts are decoded by no codec that a client chooses."""

import pytest
from starlette.requests import Request

from app.api.openai.multipart_upload import in_utf8
from app.errors import UnsupportedMediaType


def form(kind: str) -> Request:
    return Request({"type": "http", "headers": [(b"content-type", kind.encode("latin-1"))]})


@pytest.mark.parametrize("charset", ["", "; charset=utf-8", '; charset="UTF-8"', "; charset=us-ascii"])
def test_a_forms_texts_are_utf_8(charset: str) -> None:
    in_utf8(form(f"multipart/form-data; boundary=x{charset}"))


@pytest.mark.parametrize("charset", [
    "charset=utf-7", "charset=unicode_escape", "charset=undefined", "CHARSET=punycode",
    "charset=\xff",
])  # fmt: skip
def test_another_charset_is_refused(charset: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        in_utf8(form(f"multipart/form-data; boundary=x; {charset}"))
