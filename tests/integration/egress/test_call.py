"""One call, to real servers: bounded, unredirected, straight."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.integration.egress.conftest import Receiver

from bellringer.egress.guarded_connect import EgressGuard
from bellringer.egress.http_call import (
    MAX_RESPONSE_BYTES,
    CallFailure,
    CallFailureKind,
    HttpRequest,
    HttpResponse,
    send_request,
)
from bellringer.egress.settings import Egress
from bellringer.egress.urls import parse_url


async def called(url: str, egress: Egress, *, seconds: float = 20, **more: object) -> HttpResponse | CallFailure:
    target = parse_url(url, egress.allowed)
    guard = EgressGuard(egress.allowed, target.scheme == "https")
    request = HttpRequest(url=target, timeout=timedelta(seconds=seconds), **more)  # type: ignore[arg-type]
    return await send_request(request, guard, time.monotonic)


async def test_a_call_brings_back_what_the_server_said(receiver: Receiver, egress: Egress) -> None:
    receiver.answers = [(201, {"X-Told": "yes"}, b"made")]
    answer = await called(receiver.url, egress, body=b"{}", headers={"content-type": "application/json"})
    assert isinstance(answer, HttpResponse)
    assert (answer.status, answer.headers["x-told"], answer.body, answer.cut) == (201, "yes", b"made", False)
    [sent] = receiver.received
    assert (sent.method, sent.target, sent.body) == ("POST", "/hook", b"{}")
    assert sent.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert sent.headers["accept-encoding"] == "identity"


async def test_a_redirect_is_an_answer_and_never_followed(receiver: Receiver, egress: Egress) -> None:
    receiver.answers = [(302, {"Location": f"http://127.0.0.1:{receiver.port}/other"}, b"")]
    answer = await called(receiver.url, egress)
    assert isinstance(answer, HttpResponse)
    assert answer.status == 302
    assert [sent.target for sent in receiver.received] == ["/hook"]


async def test_a_proxy_of_the_environment_is_not_used(
    receiver: Receiver, egress: Egress, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    answer = await called(receiver.url, egress)
    assert isinstance(answer, HttpResponse)


async def test_of_a_long_body_the_beginning_is_kept(receiver: Receiver, egress: Egress) -> None:
    receiver.answers = [(200, {}, b"x" * (3 * MAX_RESPONSE_BYTES))]
    answer = await called(receiver.url, egress)
    assert isinstance(answer, HttpResponse)
    assert (len(answer.body), answer.cut) == (MAX_RESPONSE_BYTES, True)


async def test_a_compressed_body_is_not_unpacked(receiver: Receiver, egress: Egress) -> None:
    receiver.answers = [(200, {"Content-Encoding": "gzip"}, b"\x1f\x8b not gzip at all")]
    answer = await called(receiver.url, egress)
    assert isinstance(answer, HttpResponse)
    assert answer.body == b"\x1f\x8b not gzip at all"


async def test_a_server_that_says_nothing_is_given_up(egress: Egress) -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the caller hangs up
        ended.set()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        failure = await called(f"http://127.0.0.1:{port}/", egress, seconds=0.3)
        assert isinstance(failure, CallFailure)
        assert failure.trouble is CallFailureKind.TIMEOUT
        async with asyncio.timeout(20):
            await ended.wait()


async def test_a_server_that_drips_is_given_up(egress: Egress) -> None:
    ended = asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.close()
        ended.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        failure = await called(f"http://127.0.0.1:{port}/", egress, seconds=0.5)
        assert isinstance(failure, CallFailure)
        assert failure.trouble is CallFailureKind.TIMEOUT
        async with asyncio.timeout(20):
            await ended.wait()


@pytest.mark.parametrize(
    "said", [b"SSH-2.0-OpenSSH_9\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nx\r\n\r\n"]
)
async def test_a_response_that_is_not_http_is_a_failure(said: bytes, receiver: Receiver, egress: Egress) -> None:
    receiver.answers = [said]
    failure = await called(receiver.url, egress)
    assert isinstance(failure, CallFailure)
    assert failure.trouble is CallFailureKind.PROTOCOL


async def test_a_port_where_no_one_listens_is_a_failure(egress: Egress) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        failure = await called(f"http://127.0.0.1:{taken.getsockname()[1]}/", egress)
    assert isinstance(failure, CallFailure)
    assert failure.trouble is CallFailureKind.CONNECT


async def test_tls_with_a_server_that_speaks_none_is_a_failure(egress: Egress) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        failure = await called(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/", egress)
    assert isinstance(failure, CallFailure)
    assert failure.trouble is CallFailureKind.CONNECT


async def test_a_name_that_begins_to_lead_inside_is_blocked_before_anything_is_connected(receiver: Receiver) -> None:
    said: Iterator[list[str] | OSError] = iter(
        [["93.184.216.34"], ["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], OSError("no answer"), []]
    )
    dialled: list[str] = []

    async def resolver(host: str, port: int) -> Sequence[str]:
        answer = next(said)
        if isinstance(answer, OSError):
            raise answer
        return answer

    class Dialler(EgressGuard):
        async def connect_tcp(self, host: str, *_: object, **__: object) -> object:  # type: ignore[override]
            dialled.append(host)
            raise OSError("not in a test")

    target = parse_url(f"https://rebind.example:{receiver.port}/")
    guard = EgressGuard((), True, resolver, Dialler())  # noqa: FBT003
    ends = [await send_request(HttpRequest(url=target), guard, time.monotonic) for _ in range(5)]
    assert [end.trouble for end in ends if isinstance(end, CallFailure)] == [
        CallFailureKind.CONNECT,
        CallFailureKind.RESOLVE,
        CallFailureKind.RESOLVE,
        CallFailureKind.RESOLVE,
        CallFailureKind.RESOLVE,
    ]
    # Inner and unknown names get the same answer: different ones would map the inner network, name by name.
    assert {end.message for end in ends[1:] if isinstance(end, CallFailure)} == {"rebind.example has no public address"}
    assert dialled == ["93.184.216.34"]
    assert receiver.received == []


async def test_a_name_is_called_without_tls_only_at_addresses_that_the_operator_permits(receiver: Receiver) -> None:
    egress = Egress.read(["10.9.0.0/16"], ())

    async def resolver(host: str, port: int) -> Sequence[str]:
        return ["93.184.216.34"]

    target = parse_url("http://service.example:8080/", egress.allowed)
    end = await send_request(
        HttpRequest(url=target), EgressGuard(egress.allowed, tls=False, resolver=resolver), time.monotonic
    )
    assert isinstance(end, CallFailure)
    assert end.trouble is CallFailureKind.BLOCKED
    assert "without TLS" in end.message


def certificate(name: str, folder: Path) -> Path:
    """A certificate for this name, signed by itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(encoding, form, serialization.NoEncryption())
    path.write_bytes(private + made.public_bytes(encoding))
    return path


async def test_the_checked_address_is_called_by_its_name(
    receiver: Receiver, egress: Egress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection goes to the address; TLS and the Host header have the name, and the certificate must fit it."""
    path = certificate("hook.example", tmp_path)
    serving, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=path)
    serving.load_cert_chain(path)
    names: list[str | None] = []
    serving.sni_callback = lambda _socket, name, _context: names.append(name)
    monkeypatch.setattr("bellringer.egress.http_call._tls_context", lambda: trusting)

    async def resolver(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    async def to(name: str) -> HttpResponse | CallFailure:
        target = parse_url(f"https://{name}:{port}/hook", egress.allowed)
        return await send_request(
            HttpRequest(url=target), EgressGuard(egress.allowed, resolver=resolver), time.monotonic
        )

    server = await asyncio.start_server(receiver.attend, "127.0.0.1", 0, ssl=serving)
    async with server:
        port = server.sockets[0].getsockname()[1]
        good, bad = await to("hook.example"), await to("other.example")
    assert isinstance(good, HttpResponse)
    assert receiver.received[0].headers["host"] == f"hook.example:{port}"
    assert isinstance(bad, CallFailure)
    assert bad.trouble is CallFailureKind.CONNECT
    assert names == ["hook.example", "other.example"]
    assert len(receiver.received) == 1
