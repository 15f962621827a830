"""Which URLs may be given as a webhook's destination.

What belongs here: the rules that a URL's text alone can break. What must not be known here: names, addresses, HTTP.
"""

import re
from urllib.parse import urlsplit

from worker.errors import ConfigurationError

MAX_LENGTH = 2048

_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")


def check_url(field: str, url: str) -> str:
    """Give `url` back when it may be posted to; else raise `ConfigurationError` with the field, the value and the fix.

    A password or a token in a refused URL is not repeated in the error.
    """
    if len(url) > MAX_LENGTH:
        raise ConfigurationError(f"{field} has {len(url)} characters; give a URL of at most {MAX_LENGTH}")
    if _UNSAFE.search(url) or not url.isascii():
        fix = "give a URL of printable ASCII without spaces and backslashes; write other characters percent-encoded"
        raise ConfigurationError(f"{field} = {url!r} holds a character that no URL may hold; {fix}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(
            f"{field} = {url!r} is no URL ({error}); give one like https://example.com/hook"
        ) from None
    if "@" in parts.netloc:
        raise ConfigurationError(
            f"{field} names a user or a password before the host {parts.hostname!r}; leave them out; the receiver "
            "checks the signature instead"
        )
    if parts.scheme not in {"http", "https"}:
        raise ConfigurationError(
            f"{field} = {url!r} has the scheme {parts.scheme!r}; give a URL with http:// or https://"
        )
    if not parts.hostname or "%" in parts.hostname:
        raise ConfigurationError(f"{field} = {url!r} names no host; give a URL like https://example.com/hook")
    if port == 0:
        raise ConfigurationError(f"{field} = {url!r} names port 0; give a port from 1 to 65535 or leave it out")
    if parts.fragment or url.endswith("#"):
        raise ConfigurationError(
            f"{field} = {url!r} has a fragment, which is never sent; remove '#' and what follows it"
        )
    return url
