"""Everything bad that we could think of: what a request names, what a server says, and the bound that refuses it.

Long, because it is one table. `make bench NAME=media` runs it too.
"""

import zlib
from base64 import b64encode
from collections.abc import Callable
from typing import NamedTuple

from app.media.source import SourceKind
from tests.media import answers
from tests.media.answers import body, headed, raw, redirect, status
from tests.media.hostile_server import INNER, OUTER, Serve
from tests.media.samples import SIGNATURE, chunk, gif_of_size, jpeg_of_size, picture, png, webp_of_size

SIZE, PIXELS = 256 * 1024, 1000 * 1000  # the bounds of all cases

# Names that lead to more or other addresses than our server's.
NAMES: dict[str, list[list[str]]] = {
    "media.test": [[OUTER]],
    "rebind.test": [[OUTER], [INNER]],
    "inner.test": [[INNER]],
    "mixed.test": [[OUTER, INNER]],
    "metadata.test": [["169.254.169.254"]],
    "private.test": [["10.0.0.1"]],
    "shared.test": [["100.64.0.1"]],
    "zero.test": [["0.0.0.0"]],
    "broadcast.test": [["255.255.255.255"]],
    "multicast.test": [["224.0.0.1"]],
    "reserved.test": [["240.0.0.1"]],
    "relay.test": [["192.88.99.1"]],
    "loopback6.test": [["::1"]],
    "any6.test": [["::"]],
    "mapped.test": [[f"::ffff:{INNER}"]],
    "mapped-metadata.test": [["::ffff:a9fe:a9fe"]],
    "compatible.test": [[f"::{INNER}"]],
    "nat64.test": [[f"64:ff9b::{INNER}"]],
    "own-nat64.test": [["64:ff9b:1::a9fe:a9fe"]],
    "six-to-four.test": [["2002:7f00:2::1"]],
    "teredo.test": [["2001:0:7f00:2::1"]],
    "unique-local.test": [["fd00:ec2::254"]],
    "link-local.test": [["fe80::1"]],
    "zone.test": [["fe80::1%lo"]],
    "public-zone.test": [["2606:4700::1%lo"]],
    "site-local.test": [["fec0::1"]],
    "multicast6.test": [["ff0e::1"]],
    "documented6.test": [["2001:db8::1"]],
    "segments6.test": [["5f00::1"]],
    "nonsense.test": [["not an address"]],
    "empty.test": [[]],
    "xn--bcher-kva.test": [[INNER]],
    "localhost": [[OUTER, "::1"]],
    "wrong-name.test": [[OUTER]],
    "slow.test": [[OUTER]],
}
_INSIDE = "has no public address"
_UNREADABLE = "has no host that can be read"
_LITERAL = "an address in place of a name isn't allowed"
_BROKEN = "it is broken or incomplete"
_FOREIGN = "it is none of JPEG, PNG, WEBP"
_PIXELS = f"more than {PIXELS} pixels (XYLEM_MEDIA_PIXELS)"
_LARGE = f"more than {SIZE} bytes (XYLEM_MEDIA_BYTES)"
_UNREACHED = "can't be reached, has no valid certificate, or breaks off its answer"


class Case(NamedTuple):
    name: str
    reason: str  # the end of the refusal, or some of it
    url: str = ""  # "" and no data: what `serve` says; "{port}", "{silent}" and "{folder}" are replaced
    serve: Serve | None = None
    data: bytes | Callable[[], bytes] | None = None  # what takes long to make is made when it is sent
    kind: SourceKind = "image"
    limits: str = "usual"  # which of test_hostile.LIMITS


def _urls() -> list[Case]:
    """Refused before anything is asked of anybody."""
    shapes = {
        "http": ("http://media.test:{port}/a", "has to begin with https: or data:"),
        "ftp": ("ftp://media.test/a", "has to begin with https: or data:"),
        "gopher": ("gopher://media.test:6379/_SET", "has to begin with https: or data:"),
        "no scheme": ("//media.test:{port}/a", "has to begin with https: or data:"),
        "no url": ("", "has to begin with https: or data:"),
        "user": ("https://user@media.test:{port}/a", "a user or a password"),
        "password": ("https://media.test:x@inner.test:{port}/a", "a user or a password"),
        "empty user": ("https://@media.test:{port}/a", "a user or a password"),
        "literal": ("https://127.0.0.2:{port}/a", _LITERAL),
        "public literal": ("https://1.1.1.1/a", _LITERAL),
        "literal in IPv6": ("https://[::1]:{port}/a", _LITERAL),
        "mapped literal": ("https://[::ffff:127.0.0.2]:{port}/a", _LITERAL),
        "literal with a zone": ("https://[fe80::1%25lo]/a", _UNREADABLE),
        "broken literal": ("https://[::1/a", "its URL can't be read"),
        "decimal literal": ("https://2130706434:{port}/a", _LITERAL),
        "hexadecimal literal": ("https://0x7f000002:{port}/a", _LITERAL),
        "octal literal": ("https://0177.0.0.2:{port}/a", _LITERAL),
        "short literal": ("https://127.2:{port}/a", _LITERAL),
        "literal with a dot": ("https://127.0.0.2.:{port}/a", _LITERAL),
        "wide digits": ("https://１２７.０.０.２:{port}/a", _LITERAL),
        "ideographic dots": ("https://127。0。0。2:{port}/a", _LITERAL),
        "odd port": ("https://media.test:22/a", "the port 22 isn't allowed"),
        "port zero": ("https://media.test:0/a", "the port 0 isn't allowed"),
        "no such port": ("https://media.test:99999/a", "its URL can't be read"),
        "port in words": ("https://media.test:https/a", "its URL can't be read"),
        "backslash": ("https://media.test:{port}\\@inner.test:{port}/a", "backslashes"),
        "line break": ("https://media.test:{port}/a\r\nHost: inner.test", "control characters"),
        "zero byte": ("https://media.test\0.inner.test/a", "control characters"),
        "tab": ("https://inner\t.test:{port}/a", "control characters"),
        "space": ("https://media.test:{port}/a b", "spaces"),
        "surrogate": ("https://media.test:{port}/\ud800", "control characters"),
        "too long": ("https://media.test/" + "a" * 9000, "more than 8192 characters"),
        "no host": ("https:///a", _UNREADABLE),
        "dots": ("https://../a", _UNREADABLE),
        "long label": (f"https://{'a' * 64}.test/a", _UNREADABLE),
        "encoded host": ("https://inner%2etest:{port}/a", _UNREADABLE),
        "bad IDNA": ("https://\u2603\ufe0f\u200d.test/a", _UNREADABLE),
        "long IDNA": ("https://" + "ü" * 5000 + ".test/a", _UNREADABLE),
    }
    limits_by_name = {"host that is not listed": "listed"}
    return [
        Case(f"URL: {name}", reason, url, limits=limits_by_name.get(name, "usual"))
        for name, (url, reason) in shapes.items()
    ]


def _names() -> list[Case]:
    """Names that lead inside, all of which would reach port {port} of this machine or another network."""
    ours = ("media.test", "rebind.test", "wrong-name.test", "slow.test", "xn--bcher-kva.test")
    name_cases = [Case(f"name: {name}", _INSIDE, f"https://{name}:{{port}}/a") for name in NAMES if name not in ours]
    return [
        *name_cases,
        Case("name: unknown", _INSIDE, "https://unknown.test/a"),
        Case("name: localhost with a dot", _INSIDE, "https://localhost.:{port}/a"),
        Case("name: in capitals", _INSIDE, "https://INNER.test:{port}/a"),
        Case("name: international", _INSIDE, "https://bücher.test:{port}/a"),
        Case("name: slow", _INSIDE, "https://slow.test:{port}/a", limits="short"),
        Case("name: changes between redirects", _INSIDE, "https://rebind.test:{port}/rebind",
             redirect("https://rebind.test:{port}/again")),
    ]  # fmt: skip


def _redirects() -> list[Case]:
    leads = {
        "inside": ("https://inner.test:{port}/a", _INSIDE),
        "to a literal": ("https://127.0.0.2:{port}/a", _LITERAL),
        "to metadata": ("http://169.254.169.254/latest/meta-data/", "begin with https:"),
        "to http": ("http://media.test:{port}/a", "begin with https:"),
        "to a file": ("file:///etc/passwd", "begin with https:"),
        "to data": ("data:image/png;base64,AAAA", "begin with https:"),
        "to a user": ("https://media.test@inner.test:{port}/a", "a user or a password"),
        "without a scheme": ("//inner.test:{port}/a", _INSIDE),
        "to another port": ("https://media.test:6379/a", "the port 6379 isn't allowed"),
        "to nonsense": ("https://[::1/a", "can't be read"),
        "in bytes": ("https://media.test:{port}/\\..\\a", "backslashes"),
        "in a circle": ("/redirect-in-a-circle", "redirects more than 3 times (XYLEM_MEDIA_REDIRECTS)"),
    }
    redirect_cases = [
        Case(f"redirect: {name}", reason, serve=redirect(where)) for name, (where, reason) in leads.items()
    ]
    codes = [Case(f"redirect: inside by {code}", _INSIDE, serve=redirect("https://inner.test:{port}/a", code))
             for code in (301, 303, 307, 308)]  # fmt: skip
    slow = answers.slow_redirect("/redirect-slow", 0.4)
    return [
        *redirect_cases,
        *codes,
        Case("redirect: slow", "took longer than 1 s (XYLEM_MEDIA_FETCH_S)", serve=slow, limits="short"),
    ]


def _servers() -> list[Case]:
    whole = picture()
    fetch_s = "fetching it took longer than 1 s (XYLEM_MEDIA_FETCH_S)"
    ok = b"HTTP/1.1 200 OK\r\n"
    head = ok + b"Transfer-Encoding: chunked\r\n\r\n"
    return [
        Case("server: wrong certificate", _UNREACHED, "https://wrong-name.test:{port}/server-404"),
        Case("server: refuses connections", _UNREACHED, "https://media.test:1/a", limits="any port"),
        Case("server: no TLS handshake", "longer than 0.5 s (XYLEM_MEDIA_CONNECT_S)", "https://media.test:{silent}/a",
             limits="short"),
        Case("server: says nothing", fetch_s, serve=answers.silent(), limits="short"),
        Case("server: slow head", fetch_s, serve=answers.endless(ok, b"a: b\r\n", 0.02), limits="short"),
        Case("server: slow body", fetch_s,
             serve=answers.endless(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"\x89", 0.02), limits="short"),
        Case("server: breaks off", _UNREACHED, serve=raw(b"HTTP/1.1 200")),
        Case("server: no HTTP", _UNREACHED, serve=raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")),
        Case("server: 404", "answers with status 404", serve=status("404 Not Found")),
        Case("server: 500", "answers with status 500", serve=status("500 Oh")),
        Case("server: 204", "answers with status 204", serve=status("204 No Content")),
        Case("server: part", "answers with status 206", serve=status("206 Partial Content")),
        Case("server: redirect without a place", "answers with status 302", serve=status("302 Found")),
        Case("server: endless head", "headers that are too long",
             serve=answers.endless(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 1000)),
        Case("server: one long header", "headers that are too long",
             serve=answers.endless(b"HTTP/1.1 200 OK\r\na: ", b"b" * 4096)),
        Case("server: endless 100", "headers that are too long",
             serve=answers.endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100)),
        Case("server: large, as it says", _LARGE, serve=headed("Content-Length: 10000000000")),
        Case("server: large, as it doesn't say", _LARGE, serve=answers.endless(ok + b"\r\n", b"x" * 65536)),
        Case("server: large in chunks", _LARGE, serve=answers.endless(head, b"10000\r\n" + b"x" * 65536 + b"\r\n")),
        Case("server: too small chunks", "in too small pieces", serve=answers.endless(head, b"1\r\nx\r\n" * 500)),
        Case("server: long between chunks", "too much between the pieces",
             serve=answers.endless(head, b"1;" + b"x" * 60_000 + b"\r\nx\r\n")),
        Case("server: bad chunk", _UNREACHED, serve=raw(head + b"zz\r\nx\r\n")),
        Case("server: says too little", _BROKEN, serve=headed("Content-Length: 60", content=whole)),
        Case("server: says too much", _UNREACHED, serve=headed("Content-Length: 9999", content=whole)),
        Case("server: two lengths", _UNREACHED, serve=headed("Content-Length: 5", "Content-Length: 9", content=whole)),
        Case("server: negative length", _UNREACHED, serve=headed("Content-Length: -1", content=whole)),
        Case("server: length of a thousand digits", _UNREACHED, serve=headed("Content-Length: " + "9" * 1000)),
        Case("server: bomb in gzip", "compresses it", serve=answers.compressed(bytes(10_000_000))),
        Case("server: says br", "compresses it", serve=body(whole, "Content-Encoding: br")),
        Case("server: gzip in the transfer", _UNREACHED, serve=headed("Transfer-Encoding: gzip, chunked")),
        Case("server: nothing", _FOREIGN, serve=body(b"")),
        Case("server: a web page", _FOREIGN, serve=body(b"<html>secret</html>", "Content-Type: image/png")),
    ]  # fmt: skip


def _data_urls() -> list[Case]:
    base64 = b64encode(picture()).decode()
    like = "has to be like data:image/png;base64,"
    shapes = {
        "not in base64": ("data:image/png,%89PNG", like),
        "without a type": (f"data:;base64,{base64}", like),
        "without a comma": (f"data:image/png;base64{base64}", like),
        "long head": (f"data:image/png;a={'b' * 500};base64,{base64}", like),
        "a page": (f"data:text/html;base64,{base64}", "says text/…, not image/…"),
        "a sound": (f"data:audio/wav;base64,{base64}", "says audio/…, not image/…"),
        "bad letters": (f"data:image/png;base64,{base64[:40]}!{base64[41:]}", "base64 is not valid"),
        "letters outside ASCII": (f"data:image/png;base64,{base64[:40]}é{base64[41:]}", "base64 is not valid"),
        "percent": (f"data:image/png;base64,{base64[:40]}%2B{base64[40:]}", "base64 is not valid"),
        "bad padding": (f"data:image/png;base64,{base64.rstrip('=')[:41]}", "base64 is not valid"),
        "padding within": (f"data:image/png;base64,{base64[:40]}===={base64[40:]}", "base64 is not valid"),
        "empty": ("data:image/png;base64,", _FOREIGN),
        "too large": ("data:image/png;base64," + "A" * (2 * SIZE), _LARGE),
        "too large with line breaks": ("data:image/png;base64," + ("A" * 76 + "\n") * (SIZE // 38), _LARGE),
    }
    return [Case(f"data: {name}", reason, url) for name, (url, reason) in shapes.items()]


def _files() -> list[Case]:
    nothing = "there is no such file below XYLEM_MEDIA_FOLDER"
    paths = {
        "outside": ("file:///etc/passwd", nothing),
        "dots": ("file://{folder}/../secret.png", nothing),
        "encoded dots": ("file://{folder}/%2e%2e/secret.png", nothing),
        "link": ("file://{folder}/link.png", nothing),
        "linked folder": ("file://{folder}/linked/secret.png", nothing),
        "folder's namesake": ("file://{folder}-more/secret.png", nothing),
        "missing": ("file://{folder}/missing.png", nothing),
        "folder": ("file://{folder}/", nothing),
        "pipe": ("file://{folder}/pipe", nothing),
        "link to a device": ("file://{folder}/zero", nothing),
        "links in a circle": ("file://{folder}/circle", nothing),
        "zero byte": ("file://{folder}/a%00.png", nothing),
        "long name": ("file://{folder}/" + "a" * 5000, nothing),
        "other host": ("file://media.test{folder}/good.png", "has to be like file:///"),
        "too large": ("file://{folder}/large.png", _LARGE),
        "path without file:": ("{folder}/good.png", "has to begin with https:, data: or file:"),
    }
    file_cases = [Case(f"file: {name}", reason, url, limits="files") for name, (url, reason) in paths.items()]
    return [*file_cases, Case("file: none allowed", "(XYLEM_MEDIA_FOLDER is not set)", "file://{folder}/good.png")]


def _zeros() -> bytes:
    return zlib.compress(bytes(40_000_000), 9)


def _pictures() -> list[Case]:
    whole, jpeg, webp = picture(size=(200, 200)), picture("JPEG", (200, 200)), picture("WEBP", (200, 200))
    contents: dict[str, tuple[bytes | Callable[[], bytes], str]] = {
        "PNG cut off": (whole[:-30], _BROKEN),
        "PNG cut off in its head": (whole[:20], _BROKEN),
        "PNG with a bad checksum": (whole[:60] + b"\xff" + whole[61:], _BROKEN),
        "JPEG cut off": (jpeg[: len(jpeg) // 2], _BROKEN),
        "WebP cut off": (webp[: len(webp) // 2], _BROKEN),
        "signature only": (SIGNATURE, _FOREIGN),
        "GIF cut off": (picture("GIF", (200, 200))[:-30], _BROKEN),
        "BMP": (picture("BMP"), _FOREIGN),
        "TIFF": (picture("TIFF"), _FOREIGN),
        "ICO": (picture("ICO"), _FOREIGN),
        "JPEG 2000": (b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(100), _FOREIGN),
        "AVIF": (b"\0\0\0\x1cftypavif" + bytes(100), _FOREIGN),
        "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>', _FOREIGN),
        "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", _FOREIGN),
        "PDF": (b"%PDF-1.7\n", _FOREIGN),
        "bomb in PNG": (lambda: png(13_000, 13_000, rows=13_000, bits=1), _PIXELS),
        "barely too many pixels": (png(1000, 1001, rows=1001), _PIXELS),
        "PNG that says too much": (png(2**31 - 1, 2**31 - 1, rows=0), _PIXELS),
        "PNG of no width": (png(0, 10), _FOREIGN),
        "GIF that says too much": (gif_of_size(b"GIF87a", 65535, 65535), _PIXELS),
        "GIF with a frame that is larger than itself": (gif_of_size(b",\0\0\0\0", 65535, 65535), _PIXELS),
        "JPEG that says too much": (jpeg_of_size(65535, 65535), _PIXELS),
        "WebP that says too much": (webp_of_size(16384, 16384), _PIXELS),
        "WebP that says a little too much": (webp_of_size(1200, 1200), _PIXELS),
        "bomb in a PNG's text": (lambda: png(10, 10, chunk(b"zTXt", b"a\0\0" + _zeros()), rows=10), _BROKEN),
        "bomb in a PNG's other text": (
            lambda: png(10, 10, chunk(b"iTXt", b"a\0\1\0\0\0" + _zeros()), rows=10),
            _BROKEN,
        ),
        "PNG with a cut chunk": (png(10, 10)[:40] + b"\xff\xff\xff\xff" + png(10, 10)[44:], _FOREIGN),
    }
    picture_cases = [Case(f"picture: {name}", reason, data=data) for name, (data, reason) in contents.items()]
    return [
        *picture_cases,
        Case("picture: too large", _LARGE, data=bytes(SIZE + 1)),
        Case("picture: costs much CPU", "takes more than 1 s of CPU time (XYLEM_MEDIA_DECODE_S)",
             data=lambda: png(10, 10, chunk(b"tEXt", b"a\0b") * 4_000_000, rows=10), limits="long"),
        Case("picture: costs much memory", "more memory than XYLEM_MEDIA_DECODE_BYTES",
             data=lambda: png(16_000, 16_000), limits="large"),
    ]  # fmt: skip


def _videos() -> list[Case]:
    formats = "it is no MP4 or WebM video"
    lists = {
        "playlist": (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", formats),
        "list of files": (b"ffconcat version 1.0\nfile '/etc/passwd'\n", formats),
        "picture": (picture(), formats),
        "nothing": (b"", formats),
        "cut off": (b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41", "a broken or incomplete video"),
        "broken": (b"\x1a\x45\xdf\xa3" + bytes(1000), "a broken or incomplete video"),
    }
    return [Case(f"video: {name}", reason, data=data, kind="video") for name, (data, reason) in lists.items()]


CASES = [*_urls(), *_names(), *_redirects(), *_servers(), *_data_urls(), *_files(), *_pictures(), *_videos()]
