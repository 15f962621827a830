"""An MCP server of the handshake era, written by hand: lines of JSON on standard input and output.

What belongs here: the protocol as it was before the MCP library's newest version, well and badly spoken. It shares no
code with the library or with the code under test. Its arguments say how it behaves:

    mute       reads and never answers
    shy        never answers a method that it does not know
    loud       writes lines between its messages that are no JSON
    paged      lists one tool a page
    unlisted   refuses to list its tools
    odd        lists tools that are none among the others
    wordy      answers a call with a text instead of an object
    grows      offers one tool more after each call, and says so
    mends      is odd no more after a call, and says so
"""

import json
import sys
from typing import Any

BEHAVIOUR = set(sys.argv[1:])
TOOLS: list[dict[str, Any]] = [
    {"name": "echo", "description": "Says it again.", "inputSchema": {"type": "object"}},
    {"name": "read.file/überall", "title": "Reads", "inputSchema": {"type": "object"}},
    {"name": "read_file_" + "x" * 80, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "wait", "inputSchema": {"type": "object"}, "annotations": {"idempotentHint": True}},
    {"name": "echo", "description": "Is listed twice.", "inputSchema": {"type": "object"}},
]


def send(message: dict[str, Any]) -> None:
    """Write one message."""
    if "loud" in BEHAVIOUR:
        sys.stdout.write("this is no JSON\n")
    sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    sys.stdout.flush()


def answer(request: dict[str, Any], result: dict[str, Any]) -> None:
    """Answer a request."""
    send({"id": request["id"], "result": result})


def refuse(request: dict[str, Any], code: int, message: str) -> None:
    """Answer a request with an error."""
    send({"id": request["id"], "error": {"code": code, "message": message}})


def handle_list(request: dict[str, Any]) -> None:
    """Give the tools, all or a page."""
    if "unlisted" in BEHAVIOUR:
        refuse(request, -32603, "the list holds a secret")
        return
    if "odd" in BEHAVIOUR:
        bad = [{"name": name, "inputSchema": {"type": "array"}} for name in ("bad", "read.it")]
        answer(request, {"tools": [*bad, 7, {"inputSchema": {"type": "object"}}, *TOOLS]})
        return
    if "paged" not in BEHAVIOUR:
        answer(request, {"tools": TOOLS})
        return
    at = int((request.get("params") or {}).get("cursor") or 0)
    more = {"nextCursor": str(at + 1)} if at + 1 < len(TOOLS) else {}
    answer(request, {"tools": TOOLS[at : at + 1]} | more)


def handle_call(request: dict[str, Any]) -> None:
    """Run a tool."""
    params = request["params"]
    token = params.get("_meta", {}).get("progressToken")
    if params["name"] == "wait":
        return
    if "wordy" in BEHAVIOUR:
        send({"id": request["id"], "result": "what"})
        return
    if token is not None:
        send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
    if "grows" in BEHAVIOUR:
        TOOLS.append({"name": f"grown_{len(TOOLS)}", "inputSchema": {"type": "object"}})
        send({"method": "notifications/tools/list_changed"})
    if "mends" in BEHAVIOUR:
        BEHAVIOUR.discard("odd")
        send({"method": "notifications/tools/list_changed"})
    answer(request, {"content": [{"type": "text", "text": json.dumps(params.get("arguments"))}]})


def handle(message: dict[str, Any]) -> None:
    """Handle one message of the client."""
    match message.get("method"):
        case _ if "mute" in BEHAVIOUR or "id" not in message:
            pass
        case "initialize":
            answer(
                message,
                {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {"listChanged": True}},
                    "serverInfo": {"name": "raw", "version": "1"},
                },
            )
        case "tools/list":
            handle_list(message)
        case "tools/call":
            handle_call(message)
        case _ if "shy" not in BEHAVIOUR:
            refuse(message, -32601, "Method not found")


if __name__ == "__main__":
    for line in sys.stdin:
        handle(json.loads(line))
