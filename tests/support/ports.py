"""Ports of the loopback.

What belongs here: finding one that nobody listens on. What must not be known here: who will.
"""

import socket


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
