"""Every outbound HTTP client of the product goes through the guard: no other way to dial is written anywhere."""

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(file for package in ("worker", "channels") for file in (ROOT / package).rglob("*.py"))

DIALS = {
    "AsyncClient",
    "AsyncConnectionPool",
    "AsyncHTTPTransport",
    "AnyIOBackend",
    "Client",
    "ClientSession",
    "ConnectionPool",
    "Connector",
    "HTTPConnection",
    "HTTPSConnection",
    "HTTPTransport",
    "OpenerDirector",
    "PoolManager",
    "ProxyConnector",
    "Session",
    "TCPConnector",
    "UnixConnector",
    "build_opener",
    "connect_tcp",
    "create_connection",
    "create_datagram_endpoint",
    "getaddrinfo",
    "gethostbyname",
    "open_connection",
    "open_session",
    "sock_connect",
    "socket",
    "start_connection",
    "streamable_http_client",
    "sse_client",
    "urlopen",
    "urlretrieve",
    "websocket_client",
    "ws_connect",
}
"""Names that make, or look up the end of, a connection in the libraries that are installed and in Python's own."""

CLIENTS = {"aiohttp", "httpcore2", "httpx", "httpx2"}
VERBS = {"delete", "get", "head", "options", "patch", "post", "put", "request", "stream"}
"""What sends a request on a client of its own."""

LIBRARIES = {"requests", "urllib3", "http.client", "urllib.request", "websockets", "ftplib", "smtplib", "telnetlib"}
"""Whoever wants one of these wants a way around the guard."""

DOORS = {
    "worker/connector.py": {"TCPConnector"},
    "worker/transport.py": {"Connector", "ClientSession", "open_session"},
    "worker/http.py": {"AsyncClient"},
    "worker/guard.py": {"socket"},
    "worker/lookup.py": {"getaddrinfo"},
    "worker/tools/mcp_dial.py": {"AsyncHTTPTransport", "AsyncConnectionPool", "AnyIOBackend", "connect_tcp"},
    "worker/tools/mcp_http.py": {"AsyncClient"},
    "worker/tools/mcp_connection.py": {"Client", "streamable_http_client"},  # on the client of mcp_http
    "channels/web/server.py": {"getaddrinfo", "socket"},  # to listen
    "channels/embedded.py": {"socket"},  # finds a free port
}
"""Where which of them may be called; everywhere else they are another door."""


def called(tree: ast.Module) -> Iterator[str]:
    """What is called, and what is inherited from: the one is a way to the other."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (base.attr for base in node.bases if isinstance(base, ast.Attribute))
            yield from (base.id for base in node.bases if isinstance(base, ast.Name))
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield node.func.attr
                if isinstance(node.func.value, ast.Name) and node.func.value.id in CLIENTS:
                    yield f"{node.func.value.id}.{node.func.attr}"
            elif isinstance(node.func, ast.Name):
                yield node.func.id


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def doors_of(text: str) -> set[str]:
    """The ways to dial that a source takes."""
    tree = ast.parse(text)
    forbidden = {name for name in imported(tree) if name in LIBRARIES or name.partition(".")[0] in LIBRARIES}
    dials = {f"{client}.{verb}" for client in CLIENTS for verb in VERBS} | DIALS
    return {name for name in called(tree) if name in dials} | forbidden


@pytest.mark.requirement("egress:doors:one")
def test_nothing_is_dialled_but_through_the_guard() -> None:
    found = {file.relative_to(ROOT).as_posix(): doors_of(file.read_text(encoding="utf-8")) for file in SOURCES}
    assert {name: doors for name, doors in found.items() if doors} == DOORS


@pytest.mark.requirement("egress:doors:one")
@pytest.mark.parametrize(
    ("text", "door"),
    [
        ("import httpx\nhttpx.AsyncClient()", "AsyncClient"),
        ("from aiohttp import ClientSession\nClientSession()", "ClientSession"),
        ("import urllib.request", "urllib.request"),
        ("from urllib import request", "urllib.request"),
        ("from http.client import HTTPSConnection", "http.client"),
        ("import requests", "requests"),
        ("import aiohttp\nclass Own(aiohttp.TCPConnector):\n    pass", "TCPConnector"),
        ("from httpx import AsyncClient\nclass Own(AsyncClient):\n    pass", "AsyncClient"),
        ("import asyncio\nasync def f():\n    await asyncio.open_connection('h', 80)", "open_connection"),
        ("import httpx\nhttpx.post('http://h')", "httpx.post"),
        ("import socket\nsocket.create_connection(('h', 80))", "create_connection"),
    ],
)
def test_another_door_is_found(text: str, door: str) -> None:
    assert door in doors_of(text)


@pytest.mark.requirement("egress:doors:one")
def test_a_client_is_never_made_without_the_guard() -> None:
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in SOURCES]
    for node in itertools.chain.from_iterable(map(ast.walk, trees)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {keyword.arg for keyword in node.keywords}
        if name == "TCPConnector":
            assert {"resolver", "socket_factory"} <= given
        if name == "AsyncConnectionPool":
            assert "network_backend" in given
        if name == "AsyncClient":
            assert {"transport", "trust_env"} <= given
