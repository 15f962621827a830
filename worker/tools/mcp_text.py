"""What an MCP server says, as Lastword says it: names of tools, and results as text.

What belongs here: translations. What must not be known here: connections. Pure.
"""

import hashlib
import json
import re
from collections.abc import Iterator

from mcp import types

_LONGEST_NAME = 64
_DIGEST_CHARS = 8
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def offered_name(server: str, tool: str) -> str:
    """The name under which a server's tool is offered: SERVER_TOOL where every provider takes that.

    Else it is made safe and short, and ends in a digest of both names, so that no two tools of a server share one. It
    depends on nothing else: the journal of a turn may be read by another process.
    """
    plain = f"{server}_{tool}"
    if tool and len(plain) <= _LONGEST_NAME and not _UNSAFE.search(plain):
        return plain
    digest = hashlib.sha256(f"{server}/{tool}".encode(errors="surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{_UNSAFE.sub('_', plain)[: _LONGEST_NAME - _DIGEST_CHARS - 1]}_{digest}"


def told(result: types.CallToolResult) -> str:
    """A result as text: texts as they are, everything else described in words with its size.

    Structured content is told (as JSON) where no text was sent: servers are asked to send it as text too.
    """
    parts = [part for block in result.content for part in _parts(block)]
    if result.structured_content is not None and not any(isinstance(b, types.TextContent) for b in result.content):
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n\n".join(parts)


def _parts(block: types.ContentBlock) -> Iterator[str]:
    match block:
        case types.TextContent(text=text):
            yield text
        case types.ImageContent(data=data, mime_type=kind) | types.AudioContent(data=data, mime_type=kind):
            yield f"[{block.type}, {kind}, {_bytes(data)} bytes: not shown]"
        case types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, text=text)):
            yield f"[resource {uri}]\n{text}"
        case types.EmbeddedResource(resource=types.BlobResourceContents(uri=uri, blob=blob, mime_type=kind)):
            yield f"[resource {uri}, {kind or 'of unknown kind'}, {_bytes(blob)} bytes: not shown]"
        case types.ResourceLink(uri=uri, name=name, mime_type=kind, size=size):
            told_size = "of unknown size" if size is None else f"{size} bytes"
            yield f"[link to resource {name}, {uri}, {kind or 'of unknown kind'}, {told_size}]"


def _bytes(base64: str) -> int:
    """The size of what is encoded in base64."""
    return len(base64) * 3 // 4 - base64[-2:].count("=")
