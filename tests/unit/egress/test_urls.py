"""Which URLs and headers may be stored: the table of bad input, line by line."""

from __future__ import annotations

import pytest

from bellringer.egress.addresses import parse_networks
from bellringer.egress.targets import check_headers
from bellringer.egress.urls import parse_url
from bellringer.errors import InvalidInput

FORBIDDEN = [
    "127.0.0.1",
    "localhost",
    "LOCALHOST",
    "a.localhost",
    "169.254.169.254",
    "[::1]",
    "10.0.0.1",
    "10.255.1.2",
    "100.64.0.1",
    "0",
    "2130706433",
    "0x7f.1",
    "127.1",
    "[::ffff:169.254.169.254]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "224.0.0.1",
    "[ff02::1]",
    "0177.0.0.1",
    "0x7f000001",
    "[::]",
    "192.168.0.1",
    "[fd00:ec2::254]",
    "[0:0:0:0:0:ffff:7f00:1]",
    "255.255.255.255",
]
INVALID = [
    "file:///etc/passwd",
    "gopher://example.com/",
    "ftp://example.com/",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
    "example.com/hook",
    "//example.com/hook",
    "https:example.com",
    "https:/example.com",
    "https://",
    "https:///path",
    "https://user:pass@example.com/",
    "https://user@example.com/",
    "https://example.com@127.0.0.1/",
    "https://example.com/#fragment",
    "https://example.com/#",
    "https://example.com:22/",
    "https://example.com:5432/",
    "https://example.com:6379/",
    "https://example.com:99999/",
    "https://example.com:0/",
    "https://example.com:/",
    "https://example.com:+443/",
    "https://example.com:٤٤٣/",
    "https://①②⑦.0.0.1/",
    "https://①②⑦.⓪.⓪.①/",
    "https://127。0。0。1/",
    "https://example.com./",
    "https://127.0.0.1./",
    "https://example..com/",
    "https://.example.com/",
    "https://exa mple.com/",
    "https://exam%70le.com/",
    "https://example.com\\@127.0.0.1/",
    "https://example.com\r\nHost: x/",
    "https://example.com/a\r\nX: y",
    "https://example.com/a\nb",
    "https://example.com/a b",
    "https://example.com/\x00",
    "https://example.com/ä",
    "https://exam\u212ale.com/",
    "https://xn--a.com/",
    "https://-a.example/",
    "https://a_b.example/",
    "https://1.2.3.4.5/",
    "https://999.1.1.1/",
    "https://134744072/",
    "https://[::1/",
    "https://[::1]x/",
    "https://[v1.a]/",
    "https://[2606:4700::1111%25eth0]/",
    "http://example.com/",
    " https://example.com/",
    "https://" + "a" * 64 + ".example/",
    "https://example.com/" + "a" * 2048,
    "",
    None,
    7,
]


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("host", FORBIDDEN)
def test_a_url_that_leads_inside_is_refused(scheme: str, host: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_url(f"{scheme}://{host}/hook", pointer="/http/url")
    assert (caught.value.code, caught.value.pointer) == ("url_forbidden_address", "/http/url")


@pytest.mark.parametrize("url", INVALID)
def test_a_url_that_is_not_plain_is_refused(url: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_url(url)
    assert caught.value.code == "url_invalid"


@pytest.mark.parametrize(
    ("written", "read", "origin"),
    [
        ("https://example.com", "https://example.com/", "https://example.com"),
        ("HTTPS://Example.COM:443/A?b=%20", "https://example.com/A?b=%20", "https://example.com"),
        ("https://example.com:8443?x", "https://example.com:8443/?x", "https://example.com:8443"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/", "https://xn--bcher-kva.example"),
        ("https://8.8.8.8/", "https://8.8.8.8/", "https://8.8.8.8"),
        ("https://[2606:4700::1111]:4433/", "https://[2606:4700::1111]:4433/", "https://[2606:4700::1111]:4433"),
    ],
)
def test_a_public_url_is_read_into_one_form(written: str, read: str, origin: str) -> None:
    url = parse_url(written)
    assert (str(url), url.origin) == (read, origin)


def test_what_the_operator_permits_may_be_called_without_tls() -> None:
    allowed = parse_networks(["127.0.0.0/8", "10.1.0.0/16"])
    assert str(parse_url("http://127.0.0.1:8080/x", allowed)) == "http://127.0.0.1:8080/x"
    assert parse_url("http://localhost:8080/x", allowed).host == "localhost"
    assert parse_url("http://billing.svc/x", allowed).port == 80  # its addresses are checked when it is called
    for url, code in [
        ("http://8.8.8.8/", "url_invalid"),
        ("http://10.2.0.1/", "url_forbidden_address"),
        ("http://127.0.0.1:5432/", "url_invalid"),
        ("https://127.0.0.1:80/", "url_invalid"),
    ]:
        with pytest.raises(InvalidInput) as caught:
            parse_url(url, allowed)
        assert caught.value.code == code


@pytest.mark.parametrize(
    "name",
    ["Host", "content-length", "Transfer-Encoding", "webhook-signature", "Webhook-Id", "webhook-x", "Connection"],
)
def test_a_header_that_is_ours_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_headers({name: "x"})
    assert (caught.value.code, caught.value.pointer) == ("header_forbidden", f"/headers/{name}")


@pytest.mark.parametrize(
    "headers",
    [
        {"x-a": "b\r\nHost: c"},
        {"x-a": "b\n"},
        {"x-a": " b"},
        {"x-a": "ä"},
        {"x-a": "\x00"},
        {"x-a": 7},
        {"x a": "b"},
        {"x:a": "b"},
        {"": "b"},
        {"x\r\n": "b"},
        {"x-a": "b", "X-A": "c"},
        {"x-a": "b" * 5000},
        {f"x-{n}": "b" for n in range(51)},
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(headers: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_headers(headers)
    assert caught.value.code == "header_invalid"


def test_other_headers_are_kept_in_lower_case() -> None:
    assert check_headers({"Authorization": "Bearer x y", "X-Empty": ""}) == {
        "authorization": "Bearer x y",
        "x-empty": "",
    }
