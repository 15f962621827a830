"""What leaves a process as logs and reports: ids and places, never words."""

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import sentry_sdk

from worker import observability

PROMPT = "the patient is called Aurelia"
SECRET = "sk-do-not-tell"


class Intake:
    """A Sentry intake on the loopback that keeps what it is sent."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        intake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                intake.bodies.append(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.dsn = f"http://key@127.0.0.1:{self._server.server_port}/1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def intake() -> Iterator[Intake]:
    intake = Intake()
    yield intake
    sentry_sdk.get_client().close()
    sentry_sdk.init(dsn=None, default_integrations=False)  # none that would stay in the libraries of later tests
    intake.close()


def fail(prompt: str, api_key: str) -> None:
    """Fails as code of ours might: with words of a person in the exception and in the local variables."""
    request = {"prompt": prompt, "api_key": api_key}
    raise KeyError(f"no such thing as {request}")


@pytest.mark.requirement("reports:sentry:no-words")
def test_a_report_names_the_fault_and_its_place_and_none_of_its_words(
    intake: Intake, capfd: pytest.CaptureFixture[str]
) -> None:
    observability.configure_logging("info")
    observability.configure_sentry(intake.dsn)
    try:
        fail(PROMPT, SECRET)
    except KeyError as error:
        observability.fault("turn_crashed", error, turn="turn_1", session="s")
    sentry_sdk.flush(5)
    sent = b"".join(intake.bodies).decode()
    logged = capfd.readouterr().err
    assert "KeyError" in sent
    assert "test_reports.py" in sent
    assert "turn_1" in sent
    assert json.loads(logged)["error"] == "KeyError"
    for words in (PROMPT, SECRET, "Aurelia"):
        assert words not in sent
        assert words not in logged


@pytest.mark.requirement("reports:sentry:off-without-dsn")
def test_nothing_is_reported_without_a_dsn(intake: Intake) -> None:
    observability.configure_sentry(None)
    observability.fault("turn_crashed", ValueError("x"), turn="turn_1")
    sentry_sdk.flush(1)
    assert intake.bodies == []


def test_a_log_line_is_one_json_object_with_its_fields(capfd: pytest.CaptureFixture[str]) -> None:
    observability.configure_logging("info")
    observability.info("call_completed", turn="turn_1", call=2, usage=None)
    observability.configure_logging("warning")
    observability.info("not_shown")
    line = json.loads(capfd.readouterr().err)
    assert line.pop("at").endswith("+00:00")
    assert line == {"level": "info", "event": "call_completed", "turn": "turn_1", "call": 2, "usage": None}
