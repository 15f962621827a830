"""Certificates of a made-up authority, as files and contexts.

What belongs here: what trustme makes. What must not be known here: who connects.
"""

import ssl
from pathlib import Path

import trustme


def server_context(authority: trustme.CA, name: str = "127.0.0.1", *, asks: trustme.CA | None = None) -> ssl.SSLContext:
    """TLS of a server with this name. `asks`: it wants a client certificate that this authority signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    if asks is not None:
        asks.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def ca_file(authority: trustme.CA, folder: Path, name: str = "ca.pem") -> str:
    """The authority's own certificate."""
    path = folder / name
    authority.cert_pem.write_to_path(path)
    return str(path)


def client_files(authority: trustme.CA, folder: Path, name: str = "client.example") -> tuple[str, str]:
    """A certificate and its key, for a client."""
    issued = authority.issue_cert(name)
    certificate, key = folder / "client.pem", folder / "client.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    return str(certificate), str(key)
