"""A certificate authority of its own, and a server's certificate by it, for servers with TLS in tests."""

import subprocess
from pathlib import Path


def certify(directory: Path, names: str = "DNS:localhost,IP:127.0.0.1") -> Path:
    """Writes ca.pem, and store.pem with store.key, for those names. Returns the path of the authority's certificate."""
    (directory / "names").write_text(f"subjectAltName={names}\n")
    sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    for command in (
        _request("ca", "-x509", "-days", "2", "-out", "ca.pem"),
        _request("store", "-out", "store.csr"),
        ["x509", "-req", "-in", "store.csr", "-out", "store.pem", *sign],
    ):
        subprocess.run(["openssl", *command], cwd=directory, check=True, capture_output=True)
    return directory / "ca.pem"


def server_options(directory: Path, port: int) -> dict[str, str]:
    """Options of a redis-server or a Sentinel that speaks TLS only, with what `certify` has written."""
    files = {"tls-cert-file": "store.pem", "tls-key-file": "store.key", "tls-ca-cert-file": "ca.pem"}
    paths = {name: str(directory / file) for name, file in files.items()}
    return {"tls-port": str(port), "port": "0", "tls-auth-clients": "no", **paths}


def _request(name: str, *args: str) -> list[str]:
    """Arguments of a request for the certificate of that name, with its key."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key"]
    return ["req", *key, "-subj", f"/CN={name}", *args]
