"""What an MCP server sends that is not as the protocol has it, made into what the library can read.

What belongs here: answers that the library would drop, so that their callers wait in vain; and lists that it would
refuse whole for one tool. What must not be known here: connections, agents. Pure.
"""

from collections.abc import Mapping
from typing import Any

from mcp import types
from mcp.shared.message import SessionMessage
from mcp.types.methods import validate_server_result
from pydantic import ValidationError

_ERA_OF_HANDSHAKES = "2025-11-25"


def readable(item: object, version: str | None, unreadable: set[str]) -> object:
    """A message of the server as the library can read it; most are so already.

    `version`: of the protocol; None before it is agreed on. `unreadable` is brought up to date with the names of the
    tools that were taken out of a list because they are not as the protocol has them.
    """
    if isinstance(item, ValidationError):
        return _refused(item)
    if isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse):
        result = item.message.result
        if isinstance(result.get("tools"), list) and "content" not in result:
            item.message.result = _without_unreadable(result, version or _ERA_OF_HANDSHAKES, unreadable)
    return item


def _refused(error: ValidationError) -> object:
    """An answer that is none, as an error for whoever waits for it. Who waits is told by its id."""
    for each in error.errors(include_url=False, include_context=False):
        whole = each["input"]
        if isinstance(whole, dict) and whole.get("jsonrpc") == "2.0" and "method" not in whole:
            asked = whole.get("id")
            if isinstance(asked, int | str) and not isinstance(asked, bool):
                data = types.ErrorData(code=types.PARSE_ERROR, message="the answer cannot be read")
                return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=asked, error=data))
    return error


def _without_unreadable(result: dict[str, Any], version: str, unreadable: set[str]) -> dict[str, Any]:
    if not _is_list({**result, "tools": []}, version):
        return result  # the fault is not with a tool
    kept = []
    for tool in result["tools"]:
        name = tool.get("name") if isinstance(tool, dict) else None
        if _is_list({**result, "tools": [tool]}, version):
            kept.append(tool)
            unreadable.discard(tool["name"])
        else:
            unreadable.add(name if isinstance(name, str) else "a tool without a name")
    return {**result, "tools": kept}


def _is_list(result: Mapping[str, Any], version: str) -> bool:
    try:
        validate_server_result("tools/list", version, result)
        types.ListToolsResult.model_validate(result, by_name=False)
    except ValidationError:
        return False
    except (KeyError, ValueError):  # a version that the library does not know: it does not check either
        return True
    return True
