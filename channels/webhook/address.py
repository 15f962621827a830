"""Which URLs may be given as a webhook's destination.

What belongs here: the rules that a URL's text alone can break. What must not be known here: what names stand for, HTTP.

What a name stands for is judged when it is dialled (`worker.guard`); no URL is right for good because it was once.
"""

import re
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import SplitResult, urlsplit

from channels.endpoints.model import UnfitUrl
from worker.egress import Forbidden, Policy
from worker.errors import ConfigurationError

MAX_LENGTH = 2048

_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)//")
_SCHEME_NAME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,19}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_LOCAL_NAMES = frozenset(
    {"localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"}
)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?=[:/?#]|$)")
_PLACE = re.compile(r"[A-Za-z0-9._-]{1,80}:[0-9]{1,20}/?")


def shown(url: str) -> str:
    """Scheme and host of what may be a URL. All that follows may be a secret, and with an '@' the host may be one."""
    scheme = _SCHEME.match(url)
    begin = scheme.end() if scheme else 0
    host = None if "@" in url else _HOST.match(url, begin)
    end = host.end() if host else begin
    return url[:end] + ("/..." if host and end < len(url) else "..." if end < len(url) else "")


def check_url(field: str, url: str, policy: Policy | None = None) -> str:
    """Give `url` back when it may be posted to; else raise `UnfitUrl` with the field, the value and the fix.

    Of a refused URL the error repeats scheme and host only. `policy`: also refuse a port that it forbids, and a host
    that stands for a forbidden address as it is written.
    """
    try:
        parts = _checked_text(field, url)
    except ConfigurationError as error:
        raise UnfitUrl(str(error), "invalid_url") from None
    if policy is not None:
        forbidden = _forbidden(parts, policy)
        if forbidden is not None:
            fix = "give another URL, or change that setting" if forbidden.setting else "give another URL"
            raise UnfitUrl(f"{field} = {shown(url)!r} is {forbidden}; {fix}", "blocked")
    return url


def check_proxy(url: str) -> str:
    """Give `url` back when it is that of a proxy; else raise ValueError with the fix. Its words hold no secret."""
    fix = "give one like http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT"
    scheme, _, rest = url.partition("://")
    if not rest:
        raise ValueError(f"it is no URL of a proxy; {fix}")
    if scheme.lower() != "http":
        # In another form it may be a user and a password.
        named = f"{scheme!r} " if _SCHEME_NAME.fullmatch(scheme) else "other "
        raise ValueError(f"{named}proxies cannot be used, only http ones; {fix}")
    if _UNSAFE.search(url) or not url.isascii():
        raise ValueError(f"it holds a character that no URL may hold; write it percent-encoded, or {fix}")
    try:
        parts = urlsplit(url)
        host, port, is_bracketed = parts.hostname or "", parts.port, "[" in parts.netloc
    except ValueError:
        host, port, is_bracketed = "", 0, False
    # With an '@', or in another form, it may be a password.
    named = f", {rest!r}," if _PLACE.fullmatch(rest) else ""
    if port == 0:
        raise ValueError(f"its host or port{named} cannot be read; a port is from 1 to 65535; {fix}")
    if not (_is_ipv6(host) if is_bracketed else _is_name(host)):
        raise ValueError(f"its host{named} can be none; {fix}")
    return url


def _checked_text(field: str, url: str) -> SplitResult:
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
    _check_host(field, url, parts)
    if port == 0:
        raise ConfigurationError(f"{field} = {shown(url)!r} names port 0; give a port from 1 to 65535 or leave it out")
    if parts.fragment or url.endswith("#"):
        raise ConfigurationError(
            f"{field} = {shown(url)!r} has a fragment, which is never sent; remove '#' and what follows it"
        )
    return parts


def _check_host(field: str, url: str, parts: SplitResult) -> None:
    host, is_bracketed = parts.hostname or "", "[" in parts.netloc
    if not host or "%" in host or (is_bracketed and not _is_ipv6(host)):
        raise ConfigurationError(f"{field} = {shown(url)!r} names no host; give a URL like https://example.com/hook")
    if not is_bracketed and _ends_in_a_number(host) and not _is_ipv4(host):
        raise ConfigurationError(
            f"{field} = {shown(url)!r} has a number for a host; write a name, or an address like 192.0.2.1 in full"
        )
    if not is_bracketed and not _is_name(host):
        raise ConfigurationError(
            f"{field} = {shown(url)!r} has a host that no name can be: each part between dots has 1 to 63 "
            "characters, and one that begins with xn-- is a name in Punycode; correct it"
        )


def _is_name(host: str) -> bool:
    """Whether it can be looked up, and shown, as IDNA has it."""
    try:
        return bool(host.encode("idna").decode("idna"))
    except UnicodeError:
        return False


def _forbidden(parts: SplitResult, policy: Policy) -> Forbidden | None:
    host = parts.hostname or ""
    name = host.removesuffix(".")
    addresses = [host] if _is_ipv4(host) or _is_ipv6(host) else []
    if name in _LOCAL_NAMES or name.endswith(".localhost"):
        addresses = ["127.0.0.1"]
    refusals = (policy.forbids(address) for address in addresses)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    return next((refusal for refusal in refusals if refusal), None) or policy.forbids_port(port)


def _ends_in_a_number(host: str) -> bool:
    """Whether it would be read as an address: 2130706433, 0x7f000001, 127.1, 017700000001 are all 127.0.0.1."""
    return _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2].lower()) is not None


def _is_ipv4(host: str) -> bool:
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True
