"""Which URLs may be posted to, and what a refused one is told."""

import pytest

from channels.webhook.address import check_url
from worker.errors import ConfigurationError


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example/turns",
        "http://127.0.0.1:8080/hook?key=1&x=%20",
        "https://[2001:db8::1]:8443/",
        "https://xn--mnchen-3ya.example",
        "HTTPS://Hooks.Example/",
        "https://hooks.example/" + "a" * (2048 - len("https://hooks.example/")),
    ],
)
def test_a_url_that_can_be_posted_to_is_given_back_unchanged(url: str) -> None:
    assert check_url("endpoints.crm.url", url) == url


@pytest.mark.requirement("webhook:address:refused")
@pytest.mark.parametrize(
    ("url", "why", "fix"),
    [
        ("", "= ''", "begin with http:// or https://"),
        ("hooks.example/turns", "= 'hooks.example/...'", "begin with http:// or https://"),
        ("ftp://hooks.example/", "= 'ftp://hooks.example/...'", "begin with http:// or https://"),
        ("file:///etc/passwd", "= 'file://...'", "begin with http:// or https://"),
        ("https://", "names no host", "https://example.com/hook"),
        ("http:///hook", "names no host", "https://example.com/hook"),
        ("https://:8080/hook", "names no host", "https://example.com/hook"),
        ("http://127.0.0.1%00.example/", "names no host", "https://example.com/hook"),
        ("http://[fe80::1%25eth0]/", "names no host", "https://example.com/hook"),
        ("https://hooks.example:0/", "port 0", "1 to 65535"),
        ("https://hooks.example:65536/", "is no URL", "https://example.com/hook"),
        ("https://hooks.example:x/", "is no URL", "https://example.com/hook"),
        ("https://[::1/", "is no URL", "https://example.com/hook"),
        ("https://hooks.example/#top", "fragment", "remove '#'"),
        ("https://hooks.example/#", "fragment", "remove '#'"),
        ("https://hooks.example/a b", "character that no URL may hold", "percent-encoded"),
        ("https://hooks.example/\r\nx-evil: 1", "character that no URL may hold", "percent-encoded"),
        ("http://evil\\@127.0.0.1/", "character that no URL may hold", "percent-encoded"),
        ("https://hooks。example/", "character that no URL may hold", "percent-encoded"),
        ("https://hooks.example/" + "a" * 2048, "has 2070 characters", "at most 2048"),
    ],
)
def test_a_url_that_cannot_be_posted_to_is_refused_with_field_value_and_fix(url: str, why: str, fix: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_url("endpoints.crm.url", url)
    message = str(caught.value)
    assert message.startswith("endpoints.crm.url ")
    assert why in message
    assert fix in message


@pytest.mark.requirement("webhook:address:no-userinfo")
@pytest.mark.parametrize(
    "url", ["https://user:s3cret@hooks.example/", "ftp://s3cret@hooks.example/", "https://@hooks.example/"]
)
def test_a_user_or_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"user or a password before the host 'hooks\.example'") as caught:
        check_url("to", url)
    assert "s3cret" not in str(caught.value)


MARKER = "hush7"


@pytest.mark.requirement("webhook:address:no-secret")
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.example/T0/hush7?token=hush7#hush7", "https://hooks.example/"),
        ("https://hooks.example/T0?token=hush7#", "https://hooks.example/"),
        ("ftp://hooks.example/hush7?token=hush7#hush7", "ftp://hooks.example/"),
        ("hooks.example/hush7?token=hush7#hush7", "hooks.example"),
        ("https:/hooks.example/hush7?token=hush7", "https"),
        ("//hooks.example/hush7", ""),
        ("https://hooks.example/hu sh7/hush7", "https://hooks.example/"),
        ("https://hooks.example /hush7", "https://"),
        ("https://hooks.example/hush7?x=\u00e9", "https://hooks.example/"),
        ("https://hooks.example:0/hush7", "https://hooks.example"),
        ("https://hooks.example:65536/hush7", "https://hooks.example"),
        ("https://hooks.example:hush7/", "https://hooks.example"),
        ("https://[2001:db8::1]:hush7/hush7", "https://[2001:db8::1]"),
        ("https://[::1/hush7", "https://"),
        ("https:///hush7?hush7", "https://"),
        ("https://hush7%00.example/hush7", "https://"),
        ("https://hush7@hooks.example/hush7?hush7#hush7", "hooks.example"),
        ("https://user:hush7@hooks.example/hush7", "hooks.example"),
        ("https://hush7:x/hush7@hooks.example/", "https://"),
        ("https://user:x@hush7/hush7@hooks.example/", ""),
        ("hush7@hooks.example/hush7", ""),
        ("https://us er:hush7@hooks.example/", "https://"),
        ("https://hooks.example/" + "hush7" * 500, "has 2522 characters"),
    ],
)
def test_what_a_refused_url_may_hold_of_a_secret_is_not_repeated(url: str, shown: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_url("to", url)
    assert MARKER not in str(caught.value)
    assert shown in str(caught.value)
