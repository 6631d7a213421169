"""An OpenID Connect issuer over HTTP on loopback, whose keys a test changes."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

AUDIENCE = "xylem-tests"


class Issuer:
    def __init__(self, port: int = 0) -> None:
        self.keys: dict[str, tuple[str, Any]] = {}  # kid → algorithm, private key
        self.fetched = 0  # how often the keys were
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                document = issuer.shown(self.path)
                body = json.dumps(document or {}).encode()
                self.send_response(404 if document is None else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def shown(self, path: str) -> Any:
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        if path != "/keys":
            return None
        self.fetched += 1
        return {"keys": [self._public(kid) for kid in self.keys]}

    def _public(self, kid: str) -> dict[str, Any]:
        algorithm, private = self.keys[kid]
        jwk: dict[str, Any] = get_default_algorithms()[algorithm].to_jwk(private.public_key(), as_dict=True)  # type: ignore[call-arg]
        return jwk | {"kid": kid, "use": "sig", "alg": algorithm}

    def add(self, kid: str, algorithm: str = "RS256") -> Any:
        """A new key, in addition to the others."""
        private: Any
        if algorithm == "EdDSA":
            private = ed25519.Ed25519PrivateKey.generate()
        elif algorithm == "ES256":
            private = ec.generate_private_key(ec.SECP256R1())
        else:
            private = rsa.generate_private_key(65537, 2048)
        self.keys[kid] = algorithm, private
        return private

    def token(self, kid: str = "one", *, key: Any = None, algorithm: str | None = None, **claims: Any) -> str:
        """A good one, but for what is given; a claim that is None is left out."""
        own, private = self.keys.get(kid, ("RS256", None))
        now = int(time.time())
        good = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 600, "tenant": "blue"}
        good |= {"scope": {"models": "mock small other"}}
        all_claims = {name: value for name, value in (good | claims).items() if value is not None}
        return jwt.encode(all_claims, key or private, algorithm or own, headers={"kid": kid})


@contextmanager
def issuing(port: int = 0) -> Iterator[Issuer]:
    """An issuer with an RSA key of the id `one`."""
    issuer = Issuer(port)
    issuer.add("one")
    try:
        yield issuer
    finally:
        issuer.close()
