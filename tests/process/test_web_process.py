"""The web process as an operator runs it, beside a real turns process."""

import asyncio
import json
import shlex
import signal
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from channels.web import tokens
from tests.support.stack import Process, Stack, eventually, stand_in
from tests.support.web import EventSource, Fold, read_along
from worker.engine.shutdown import AGAIN_AFTER_S

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SLOW = """
[[calls]]
steps = [ { text = "A first half that nobody will keep", pieces = 20, every_s = 0.1 }, { reset = true } ]

[[calls]]
steps = [ { text = "An answer that takes its time, and stands.", pieces = 30, every_s = 0.1 } ]
"""

ENDLESS = """
[[calls]]
steps = [ { text = "On and on", pieces = 4, every_s = 0.1 }, { stall = true } ]
"""

SETTINGS = """
[providers.main]
base_url = "{base_url}"
model = "stand-in"

[turns]
resume_backoff_s = 0.1

[web]
drain_s = 2
"""


async def address_of(stack: Stack, process: Process) -> str:
    line = await stack.logged(process, "web_process_started")
    return f"http://{line['host']}:{line['port']}"


def drained_for_s(process: Process) -> float:
    """How long a process took from the first word to its end."""
    at = {line["event"]: datetime.fromisoformat(line["at"]) for line in process.lines()}
    return (at["web_process_stopped"] - at["web_process_draining"]).total_seconds()


async def client_of(stack: Stack, url: str, *scopes: str) -> httpx.AsyncClient:
    _, text = await tokens.create(stack.client, name="test", scopes=frozenset(scopes))
    return httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {text}"}, timeout=30)


@pytest.mark.requirement("web:whole")
async def test_a_turn_is_handed_in_read_along_and_looked_at_over_http(tmp_path: Path, real_url: str) -> None:
    async with stand_in(SLOW, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(SETTINGS.format(base_url=provider.base_url))
        stack.start("turns")
        web = stack.start("web")
        url = await address_of(stack, web)
        streaming, final = Fold(), Fold()
        async with await client_of(stack, url, "turns:write", "turns:read", "events:read") as client:
            turn = (await client.post("/v1/turns", json={"prompt": "a secret question"})).json()

            async def read(fold: Fold, query: str) -> None:
                async for _ in read_along(client, turn["turn"], fold, query=query):
                    pass

            async with asyncio.TaskGroup() as group:
                group.create_task(read(streaming, ""))
                group.create_task(read(final, "?filter=text"))
            seen = (await client.get(turn["urls"]["turn"])).json()
        sent = provider.transcript.exchanges[1].sent.text
        assert web.end() == 0
    assert seen["text"] == streaming.buffer.committed == final.buffer.committed == sent
    assert (seen["outcome"], streaming.buffer.outcome, seen["resume"]["resumes"]) == ("completed", "completed", 1)
    assert "text_delta" in streaming.names
    assert "text_stream_discarded" in streaming.names
    assert final.names[-3:] == ["text", "call_completed", "turn_completed"]
    assert_silent(web)


def assert_silent(web: Process) -> None:
    """Nothing but JSON lines, and in them nothing that was asked, answered or proves who asks."""
    text = web.log.read_text(encoding="utf-8")
    assert all(line.startswith("{") for line in text.splitlines())
    for word in ("secret question", "takes its time", "lw_", "Bearer", "turn_", "?filter"):
        assert word not in text
    requests = [line for line in web.lines() if line["event"] == "request"]
    routes = {(line["method"], line["route"], line["status"]) for line in requests}
    assert routes == {
        ("POST", "/v1/turns", 202),
        ("GET", "/v1/turns/{turn}/events", 200),
        ("GET", "/v1/turns/{turn}", 200),
    }
    assert all(line["ms"] >= 0 and line["request"] for line in requests)


@pytest.mark.requirement("web:cancel")
async def test_a_turn_that_streams_is_cancelled_within_a_second(tmp_path: Path, real_url: str) -> None:
    async with stand_in(ENDLESS, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(SETTINGS.format(base_url=provider.base_url))
        stack.start("turns")
        url = await address_of(stack, stack.start("web"))
        fold = Fold()
        async with await client_of(stack, url, "turns:write", "events:read") as client:
            turn = (await client.post("/v1/turns", json={"prompt": "hi"})).json()
            async for _ in read_along(client, turn["turn"], fold):
                if fold.buffer.staged:
                    break
            answer = (await client.post(turn["urls"]["cancel"])).json()
            assert answer["state"] == "cancelling"
            async for _ in read_along(client, turn["turn"], fold):
                pass
    assert (fold.buffer.outcome, fold.buffer.committed, fold.buffer.staged) == ("cancelled", "", "")
    assert "text_stream_discarded" in fold.names


@pytest.mark.requirement("tuning:web:drain-s")
@pytest.mark.requirement("web:drain")
async def test_sigterm_sends_readers_on_ends_requests_and_then_the_process(tmp_path: Path, real_url: str) -> None:
    async with stand_in(SLOW, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(SETTINGS.format(base_url=provider.base_url))
        stack.start("turns")
        old, new = stack.start("web"), stack.start("web")
        old_url, new_url = await address_of(stack, old), await address_of(stack, new)
        fold, source = Fold(), EventSource()
        scopes = ("turns:write", "turns:read", "events:read")
        async with await client_of(stack, old_url, *scopes) as client:
            turn = (await client.post("/v1/turns", json={"prompt": "hi"})).json()
            async with client.stream("GET", turn["urls"]["events"]) as answer:
                async for data in answer.aiter_bytes():
                    for event in source.feed(data):
                        fold.take(event)
                    if "text_delta" in fold.names and old.returncode is None:
                        old.send(signal.SIGTERM)
            assert source.retries == [1000], "the stream ended without a farewell"
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["reasons"]) == (503, ["draining"])
            assert (await client.get(turn["urls"]["turn"])).status_code == 200
            assert old.exit_code() == 0
            with pytest.raises(httpx.ConnectError):
                await client.get("/livez")
            client.base_url = httpx.URL(new_url)
            async for _ in read_along(client, turn["turn"], fold):
                pass
            seen = (await client.get(turn["urls"]["turn"])).json()
    assert fold.buffer.committed == seen["text"] == provider.transcript.exchanges[1].sent.text
    assert [line["event"] for line in old.lines()][-1] == "web_process_stopped"


@pytest.mark.requirement("web:drain")
async def test_a_second_signal_ends_it_at_once(tmp_path: Path, real_url: str) -> None:
    async with Stack(tmp_path, real_url) as stack:
        stack.configure(SETTINGS.format(base_url="http://127.0.0.1:9/v1").replace("drain_s = 2", "drain_s = 300"))
        web = stack.start("web")
        async with httpx.AsyncClient(base_url=await address_of(stack, web), timeout=30) as client:
            assert (await client.get("/livez")).status_code == 200
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
            web.send(number)  # of the two that it hears at once the second is the first one again
        await stack.logged(web, "web_process_draining")
        await asyncio.sleep(AGAIN_AFTER_S)  # nothing but the time tells the two apart
        assert web.returncode is None
        web.send(signal.SIGTERM)
        assert web.exit_code() == 0


@pytest.mark.requirement("web:drain")
async def test_ctrl_c_twice_ends_it_at_once(tmp_path: Path, real_url: str) -> None:
    async with Stack(tmp_path, real_url) as stack:
        stack.configure(SETTINGS.format(base_url="http://127.0.0.1:9/v1").replace("drain_s = 2", "drain_s = 300"))
        web = stack.start("web")
        await address_of(stack, web)
        web.send(signal.SIGINT)
        await stack.logged(web, "web_process_draining")
        web.send(signal.SIGINT)
        assert web.exit_code() == 0


@pytest.mark.requirement("web:settings")
async def test_a_port_that_is_taken_is_told_with_its_setting(tmp_path: Path, real_url: str) -> None:
    async with Stack(tmp_path, real_url) as stack:
        stack.configure(SETTINGS.format(base_url="http://127.0.0.1:9/v1"))
        port = (await address_of(stack, stack.start("web"))).rpartition(":")[2]

        def second() -> subprocess.CompletedProcess[str]:
            arguments = [sys.executable, "-m", "channels", "web", "--port", port]
            return subprocess.run(
                arguments, env=stack.environment, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
            )

        ended = await asyncio.to_thread(second)
    assert ended.returncode == 2
    assert "web.port" in ended.stderr
    assert port in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.requirement("tokens:console")
async def test_tokens_are_made_listed_and_revoked_at_the_console(tmp_path: Path, real_url: str) -> None:
    async with Stack(tmp_path, real_url) as stack:
        stack.configure(SETTINGS.format(base_url="http://127.0.0.1:9/v1"))
        url = await address_of(stack, stack.start("web"))

        def lastword(*arguments: str | bytes) -> subprocess.CompletedProcess[str]:
            line: list[str | bytes] = [sys.executable, "-m", "channels", "token", *arguments]
            return subprocess.run(
                line, env=stack.environment, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
            )

        async def at_console(*arguments: str | bytes) -> subprocess.CompletedProcess[str]:
            return await asyncio.to_thread(lastword, *arguments)

        made = await at_console("create", "--scope", "turns:read", "--name", "crm", "--expires", "90d")
        assert made.returncode == 0, made.stderr
        text = made.stdout.strip()
        headers = {"Authorization": f"Bearer {text}"}
        async with httpx.AsyncClient(base_url=url, headers=headers) as client:
            assert (await client.get("/v1/turns")).status_code == 200
            listed = json.loads((await at_console("list", "--json")).stdout)
            assert (listed["name"], listed["scopes"]) == ("crm", ["turns:read"])
            assert 89 * 86400_000 < listed["expires_ms"] - listed["created_ms"] <= 90 * 86400_000
            assert text.split("_")[2] not in (await at_console("list")).stdout
            assert (await at_console("revoke", listed["id"])).returncode == 0
            assert (await client.get("/v1/turns")).status_code == 401
        for wrong, words in (
            (("create", "--scope", "everything"), "turns:write"),
            (("create",), "scope is missing"),
            (("create", "--scope", "turns:read", "--expires", "soon"), "90d"),
            (("create", "--scope", "turns:read", "--agent", "nobody"), "nobody"),
            (("create", "--scope", "turns:read", "--agent", ""), "agent is empty"),
            (("create", "--scope", "turns:read", "--sessions", ""), "sessions is empty"),
            (("create", "--scope", "turns:read", "--sessions", b"\xff\xfe"), "no beginning of a session id"),
            (("create", "--scope", "turns:read", "--name", b"\xff\xfe"), "name"),
            (("revoke", listed["id"]), "revoked"),
        ):
            refused = await at_console(*wrong)
            assert refused.returncode == 2
            assert words in refused.stderr
            assert "Traceback" not in refused.stderr
        assert "approvals:act_as" in (await at_console("scopes")).stdout


@pytest.mark.requirement("tuning:web:host")
@pytest.mark.requirement("tuning:web:port")
async def test_it_listens_where_the_settings_say(tmp_path: Path, real_url: str) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        port = probe.getsockname()[1]
    async with Stack(tmp_path, real_url) as stack:
        web = f'host = "::1"\nport = {port}'
        stack.configure(SETTINGS.format(base_url="http://127.0.0.1:9/v1").replace("drain_s = 2", web))
        process = Process("listens", [sys.executable, "-m", "channels", "web"], tmp_path, stack.environment)
        stack.processes.append(process)
        assert await address_of(stack, process) == f"http://::1:{port}"
        reader, writer = await asyncio.open_connection("::1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.mark.requirement("web:connections:descriptors")
@pytest.mark.requirement("web:connections:cap")
async def test_with_few_descriptors_it_has_fewer_readers_and_still_answers(tmp_path: Path, real_url: str) -> None:
    async with Stack(tmp_path, real_url) as stack:
        stack.configure(SETTINGS.format(base_url="http://127.0.0.1:9/v1"))
        line = f"ulimit -n 200; exec {shlex.quote(sys.executable)} -m channels web --port 0"
        process = Process("few", ["sh", "-c", line], tmp_path, stack.environment)
        stack.processes.append(process)
        url = await address_of(stack, process)
        told = await stack.logged(process, "web_readers_reduced")
        assert (told["wanted"], told["descriptors"]) == (1000, 200)
        assert told["readers"] < 200
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        half_sent = [await asyncio.open_connection(*address) for _ in range(260)]
        for _, writer in half_sent:
            writer.write(b"GET /livez HTTP/1.1\r\nHos")
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            assert (await client.get("/livez")).status_code == 200
            assert (await client.get("/readyz")).status_code == 200
        assert await stack.logged(process, "web_connections_full")
        for _, writer in half_sent:
            writer.close()
        assert process.end() == 0


@pytest.mark.requirement("tuning:web:stop-s")
async def test_a_request_that_does_not_end_holds_the_process_up_no_longer_than_it_may(
    tmp_path: Path, real_url: str
) -> None:
    async with Stack(tmp_path, real_url) as stack:
        settings = SETTINGS.format(base_url="http://127.0.0.1:9/v1")
        stack.configure(settings.replace("drain_s = 2", "drain_s = 0\nstop_s = 1"))
        web = stack.start("web")
        url = await address_of(stack, web)
        _, text = await tokens.create(stack.client, name="test", scopes=frozenset({"turns:write"}))
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        head = f"POST /v1/turns HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {text}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        await writer.drain()

        async def counted() -> bytes | None:
            keys = [key async for key in stack.client.scan_iter("lw:limits*")]
            return keys[0] if keys else None

        await eventually(counted, bool, "the request, whose body never ends")
        web.send(signal.SIGTERM)
        assert web.exit_code() == 0
        assert 0.9 < drained_for_s(web) < 20  # of the 30 s that a body may take
        writer.close()
