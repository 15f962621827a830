"""llmock on the loopback: a server that fails on request and judges how its client took it.

What belongs here: starting it, its scenarios, its verdict. The server is the package llmock.
"""

from pathlib import Path
from typing import Any

import httpx

from tests.real.program import BIN, Program

PATHS = {"chat": "/v1", "responses": "/v1", "anthropic": "/anthropic/v1"}


class Llmock(Program):
    """llmock; `base_url` of a wire format is what a provider's settings name."""

    def __init__(self, folder: Path) -> None:
        super().__init__("llmock", "/health", folder)

    def arguments(self) -> list[str]:
        """The command that starts it. Its answers repeat the prompt, so that each turn has a text of its own."""
        listen = ["--host", "127.0.0.1", "--port", str(self.port), "--log-level", "warning"]
        return [str(BIN / "llmock"), "serve", *listen, "--response-style", "echo", "--stream-chunk-delay-ms", "2"]

    def base_url(self, wire: str) -> str:
        """Where a wire format is spoken."""
        return self.root + PATHS[wire]

    async def plan(self, *behaviors: dict[str, Any]) -> None:
        """What the next requests meet, in order."""
        await self._post("/_llmock/scenario", {"behaviors": list(behaviors)})

    async def forget(self) -> None:
        """Drop requests and plans."""
        await self._post("/_llmock/reset", {})

    async def requests(self) -> list[dict[str, Any]]:
        """Every request that came, with what it met."""
        found: list[dict[str, Any]] = (await self._get("/_llmock/requests"))["requests"]
        return found

    async def findings(self) -> list[tuple[str, str]]:
        """(severity, code) of all that it blames its client for."""
        verdict = await self._get("/_llmock/verdict")
        return [(finding["severity"], finding["code"]) for finding in verdict["findings"]]

    async def _get(self, path: str) -> Any:
        async with httpx.AsyncClient(timeout=30) as client:
            answer = await client.get(self.root + path)
            answer.raise_for_status()
            return answer.json()

    async def _post(self, path: str, body: dict[str, Any]) -> None:
        async with httpx.AsyncClient(timeout=30) as client:
            answer = await client.post(self.root + path, json=body)
            answer.raise_for_status()
