"""The client of MCP servers, which dials through the same guard with a library of its own."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path

import httpx2
import pytest
import trustme

from tests.support.egress import CLOSED, OPEN, Answers, Fails, Listener, guard
from tests.support.mcp_server_running import HttpServer, Marks
from tests.support.peer import Conversation, Peer
from worker.egress import Policy
from worker.errors import ToolsUnavailable
from worker.guard import Guard
from worker.network_section import EgressSettings
from worker.sections import AgentSettings, McpSettings
from worker.tools import mcp_http
from worker.tools.mcp_dial import GuardedTransport, blocked
from worker.tools.shelf import ToolShelf

pytestmark = pytest.mark.allow_hosts(["127.0.0.1", "127.0.0.2", "::1"])

AGENT = AgentSettings.model_validate({"tools": ["mcp:files"]})
OPERATOR = EgressSettings().for_operator


@asynccontextmanager
async def client_of(guard: Guard, context: ssl.SSLContext | None = None) -> AsyncIterator[httpx2.AsyncClient]:
    transport = GuardedTransport(guard, context or ssl.create_default_context())
    async with httpx2.AsyncClient(transport=transport, timeout=5, trust_env=False) as client:
        yield client


async def reason(guard: Guard, url: str) -> str:
    async with client_of(guard) as client:
        with pytest.raises(httpx2.ConnectError) as caught:
            await client.post(url)
    refusal = blocked(caught.value)
    return "" if refusal is None else str(refusal.forbidden)


@pytest.mark.requirement("egress:doors:mcp")
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f000001",
        "127.1",
        "017700000001",
        "0",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[::7f00:1]",
    ],
)
async def test_no_form_of_a_forbidden_address_is_connected_to(host: str) -> None:
    async with Listener() as listener, Listener("::1") as listener_v6:
        for here in (listener, listener_v6):
            assert (await reason(guard(CLOSED), f"http://{host}:{here.port}/mcp")).startswith("blocked by policy: ")
        assert (listener.accepted, listener_v6.accepted) == (0, 0)


@pytest.mark.requirement("egress:doors:mcp")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "127.1"])
async def test_what_is_allowed_is_connected_to(host: str) -> None:
    async with Listener() as listener, client_of(guard(OPEN)) as client:
        with pytest.raises(httpx2.TransportError):
            await client.post(f"http://{host}:{listener.port}/mcp")
        assert listener.accepted == 1


@pytest.mark.requirement("egress:doors:mcp")
@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/mcp", "http://[fd00:ec2::254]/mcp", "http://[::ffff:a9fe:a9fe]/"]
)
async def test_the_operator_reaches_no_metadata_service(url: str) -> None:
    told = await reason(Guard(OPERATOR, Fails(None)), url)
    assert told.endswith("(metadata service of a cloud); no setting allows it")


@pytest.mark.requirement("egress:doors:mcp")
async def test_a_name_with_a_forbidden_answer_is_not_connected_to() -> None:
    policy = Policy(allow=(ip_network("127.0.0.1/32"),))
    lookup = Answers(tools_example=[["127.0.0.1", "127.0.0.2"], ["127.0.0.1"]])
    async with Listener() as listener:
        told = await reason(guard(policy, lookup), f"http://tools.example:{listener.port}/mcp")
        assert told == "blocked by policy: address 127.0.0.2 (loopback, 127.0.0.0/8), setting egress.allow"
        assert (listener.accepted, lookup.asked) == (0, ["tools.example"])


async def answer_ok(peer: Conversation) -> None:
    while True:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


@pytest.mark.requirement("egress:doors:mcp")
async def test_the_second_address_of_a_name_is_dialled_when_the_first_refuses() -> None:
    async with Peer(answer_ok) as peer:
        port = int(peer.address.rpartition(":")[2])
        lookup = Answers(tools_example=[["127.0.0.2", "127.0.0.1"]])
        async with client_of(guard(OPEN, lookup)) as client:
            assert (await client.post(f"http://tools.example:{port}/mcp")).text == "ok"


@pytest.mark.requirement("egress:doors:mcp")
async def test_two_requests_to_a_name_are_one_connection_with_the_names_certificate() -> None:
    issuer, asked = trustme.CA(), list[str | None]()
    server, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    issuer.issue_cert("tools.example").configure_cert(server)
    issuer.configure_trust(trusting)
    server.sni_callback = lambda _socket, name, _context: asked.append(name)
    lookup = Answers(tools_example=[["127.0.0.1"]], other_example=[["127.0.0.1"]])
    async with Peer(answer_ok, server) as peer, client_of(guard(OPEN, lookup), trusting) as client:
        port = int(peer.address.rpartition(":")[2])
        for _ in range(2):
            assert (await client.post(f"https://tools.example:{port}/mcp")).text == "ok"
        assert (asked, lookup.asked, len(peer.conversations)) == (["tools.example"], ["tools.example"], 1)
        with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await client.post(f"https://other.example:{port}/mcp")


@pytest.mark.requirement("egress:doors:mcp")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_since_the_headers_may_be_secret(status: int) -> None:
    async with Peer(answer_ok) as elsewhere:

        async def redirect(peer: Conversation) -> None:
            await peer.request()
            lines = f"HTTP/1.1 {status} X\r\nLocation: {elsewhere.url}/mcp\r\nContent-Length: 0\r\n\r\n"
            await peer.send(lines.encode())

        async with Peer(redirect) as peer:
            client, _ = mcp_http.open_client({"x-key": "secret"}, 5, guard(OPEN))
            async with client:
                for method in ("POST", "GET", "DELETE"):
                    assert (await client.request(method, f"{peer.url}/mcp")).status_code == status
        assert elsewhere.conversations == []


@pytest.mark.requirement("egress:doors:mcp")
async def test_a_lookup_that_hangs_ends_with_the_connect_timeout() -> None:
    transport = GuardedTransport(guard(OPEN, Fails(None)), ssl.create_default_context())
    async with httpx2.AsyncClient(transport=transport, timeout=0.05) as client:
        with pytest.raises(httpx2.ConnectTimeout):
            await client.post("http://tools.example/mcp")


@pytest.mark.requirement("egress:doors:mcp")
async def test_a_server_that_is_blocked_is_told_with_address_and_setting() -> None:
    settings = McpSettings.model_validate({"url": "http://169.254.169.254/mcp?key=s3cret"})
    shelf = ToolShelf({"files": settings}, {}, Guard(OPERATOR, Fails(None)))
    try:
        with pytest.raises(ToolsUnavailable) as caught:
            await shelf.offered("clerk", AGENT)
    finally:
        await shelf.close()
    assert str(caught.value) == (
        "mcp.files cannot be reached: http://169.254.169.254: blocked by policy: address 169.254.169.254 (metadata "
        "service of a cloud); no setting allows it; correct mcp.files.url"
    )


@pytest.mark.requirement("tuning:egress:deny")
async def test_a_denied_network_is_denied_to_mcp_servers_too(tmp_path: Path) -> None:
    """Which are in private networks otherwise."""
    marks = Marks(tmp_path)
    with HttpServer(tmp_path, marks) as server:
        settings = McpSettings.model_validate({"url": f"http://127.0.0.1:{server.port}/mcp"})
        denying = EgressSettings.model_validate({"deny": ["127.0.0.0/8"]})
        open_to_all = ToolShelf({"files": settings}, {}, Guard(OPERATOR, Fails(None)))
        closed = ToolShelf({"files": settings}, {}, Guard(denying.for_operator, Fails(None)))
        try:
            assert await open_to_all.offered("clerk", AGENT)
            with pytest.raises(ToolsUnavailable, match=r"in 127\.0\.0\.0/8\), setting egress\.deny"):
                await closed.offered("clerk", AGENT)
        finally:
            await open_to_all.close()
            await closed.close()
