"""Which URLs may be given as a webhook's destination.

What belongs here: the rules that a URL's text alone can break. What must not be known here: names, addresses, HTTP.
"""

import re
from urllib.parse import urlsplit

from worker.errors import ConfigurationError

MAX_LENGTH = 2048

_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)//")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?=[:/?#]|$)")


def shown(url: str) -> str:
    """Scheme and host of what may be a URL. All that follows may be a secret, and with an '@' the host may be one."""
    scheme = _SCHEME.match(url)
    begin = scheme.end() if scheme else 0
    host = None if "@" in url else _HOST.match(url, begin)
    end = host.end() if host else begin
    return url[:end] + ("/..." if host and end < len(url) else "..." if end < len(url) else "")


def check_url(field: str, url: str) -> str:
    """Give `url` back when it may be posted to; else raise `ConfigurationError` with the field, the value and the fix.

    Of a refused URL the error repeats scheme and host only.
    """
    if len(url) > MAX_LENGTH:
        raise ConfigurationError(f"{field} has {len(url)} characters; give a URL of at most {MAX_LENGTH}")
    if _UNSAFE.search(url) or not url.isascii():
        fix = "give a URL of printable ASCII without spaces and backslashes; write other characters percent-encoded"
        raise ConfigurationError(f"{field} = {shown(url)!r} holds a character that no URL may hold; {fix}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its own words repeat what it could not read
        raise ConfigurationError(
            f"{field} = {shown(url)!r} is no URL: its host or port cannot be read; give one like "
            "https://example.com/hook"
        ) from None
    if "@" in parts.netloc:
        before = f"the host {parts.hostname!r}" if url.count("@") == 1 else "the host"
        raise ConfigurationError(
            f"{field} names a user or a password before {before}; leave them out; the receiver checks the signature "
            "instead"
        )
    if parts.scheme not in {"http", "https"}:
        raise ConfigurationError(
            f"{field} = {shown(url)!r} does not begin with http:// or https://; give a URL that does"
        )
    if not parts.hostname or "%" in parts.hostname:
        raise ConfigurationError(f"{field} = {shown(url)!r} names no host; give a URL like https://example.com/hook")
    if port == 0:
        raise ConfigurationError(f"{field} = {shown(url)!r} names port 0; give a port from 1 to 65535 or leave it out")
    if parts.fragment or url.endswith("#"):
        raise ConfigurationError(
            f"{field} = {shown(url)!r} has a fragment, which is never sent; remove '#' and what follows it"
        )
    return url
