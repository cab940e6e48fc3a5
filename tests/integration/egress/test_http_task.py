"""The built-in task `http`: real runs, a real worker, real receivers."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from tests.integration.egress.conftest import Receiver, Shop

from bellringer.core.retry_policy import Retry
from bellringer.core.runs import State
from bellringer.egress.http_call import HttpResponse
from bellringer.egress.secret_box import Unsealable
from bellringer.egress.settings import Egress
from bellringer.egress.target_secrets import is_credential, open_target
from bellringer.egress.targets import parse_retry_after, parse_target, response_result
from bellringer.egress.webhook_signatures import generate_secret, verify_signature
from bellringer.engine import http_targets
from bellringer.errors import InvalidInput
from bellringer.store.connection_pool import Store

NOW = datetime(2026, 11, 16, 4, tzinfo=UTC)


async def test_a_run_calls_its_url_and_keeps_the_answer(shop: Shop, receiver: Receiver) -> None:
    receiver.answers = [(200, {"Content-Type": "application/json", "X-Other": "no"}, b'{"ok":true}')]
    key = await shop.send({"url": receiver.url, "body": {"n": 1}, "headers": {"X-Mine": "yes"}})
    run = await shop.ended(key)
    assert run.state is State.SUCCEEDED
    assert run.result.pop("ms") >= 0
    assert run.result == {
        "status": 200,
        "headers": {"content-type": "application/json", "content-length": "11"},
        "body": '{"ok":true}',
    }
    [sent] = receiver.received
    assert (sent.method, sent.body) == ("POST", b'{"n":1}')
    assert sent.headers["idempotency-key"] == sent.headers["webhook-id"] == key.id
    assert (sent.headers["x-mine"], sent.headers["content-type"]) == ("yes", "application/json")
    assert "webhook-signature" not in sent.headers
    assert datetime.fromisoformat(sent.headers["bellringer-scheduled-for"]) == key.scheduled_for
    assert sent.headers["bellringer-attempt"] == "1"
    assert "bellringer-job" not in sent.headers  # a send has none


async def test_a_signed_call_is_genuine_and_its_secret_lies_nowhere_open(shop: Shop, receiver: Receiver) -> None:
    secret = generate_secret()
    key = await shop.send({"url": receiver.url, "body": "hello", "secret": secret})
    run = await shop.ended(key)
    [sent] = receiver.received
    assert verify_signature(secret, sent.headers, sent.body, datetime.now(UTC)) is None
    assert run.spec is not None
    secret_id = run.spec.kwargs["secret"]["id"]
    raw = base64.b64decode(secret.removeprefix("whsec_"))
    for table in ("secrets", "runs", "attempts", "queue", "logs"):
        for row in await shop.store.pool.fetch(f"select t::text from bellringer.{table} t"):
            assert secret not in row[0]
            assert secret.encode().hex() not in row[0]
            assert raw.hex() not in row[0]
    assert await http_targets.open_secrets(shop.store, shop.egress, secret_id, tenant_id=shop.tenant_id) == [secret]


async def test_a_credential_is_sent_and_lies_nowhere_open(shop: Shop, receiver: Receiver) -> None:
    value = "Bearer s3cr3t-of-the-shop"
    run = await shop.ended(await shop.send({"url": receiver.url, "headers": {"Authorization": value, "X-Team": "a"}}))
    [sent] = receiver.received
    assert (sent.headers["authorization"], sent.headers["x-team"]) == (value, "a")
    assert run.spec is not None
    for table in ("runs", "attempts", "queue", "logs"):
        for row in await shop.store.pool.fetch(f"select t::text from bellringer.{table} t"):
            assert "s3cr3t" not in row[0]
    # Moved elsewhere, or to another header, what is stored opens nothing.
    stored = run.spec.kwargs
    for moved in (
        {**stored, "url": receiver.url.replace("127.0.0.1", "127.0.0.2")},
        {**stored, "headers": {"x-other-token": stored["headers"]["authorization"]}},
    ):
        with pytest.raises(Unsealable):
            open_target(shop.egress, moved, tenant_id=shop.tenant_id)
    with pytest.raises(Unsealable):
        open_target(shop.egress, stored, tenant_id=shop.tenant_id + 1)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("authorization", "cookie", "x-api-key", "apikey", "proxy-x", "x-auth", "x-auth-a")),
        *((name, True) for name in ("private-token", "x-secret", "x-password", "x-amz-security-token")),
        *((name, False) for name in ("x-team", "content-type", "accept", "x-author", "user-agent", "etag")),
    ],
)
def test_headers_that_prove_who_calls_are_known_by_their_names(name: str, is_one: bool) -> None:
    assert is_credential(name) is is_one


async def test_while_a_secret_is_replaced_both_sign(shop: Shop, receiver: Receiver) -> None:
    old, new = generate_secret(), generate_secret()
    stored = await http_targets.prepare_target(
        shop.store, shop.egress, {"url": receiver.url, "secret": old}, tenant_id=shop.tenant_id
    )
    changed = await http_targets.prepare_target(
        shop.store, shop.egress, {**stored, "secret": new}, tenant_id=shop.tenant_id, before=stored
    )
    assert changed["secret"] == stored["secret"]
    for _ in range(2):  # the same change once more: the old one still signs
        await http_targets.rotate_changed_secret(
            shop.store, shop.egress, {"secret": new}, stored, tenant_id=shop.tenant_id
        )
    await shop.ended(await shop.send(changed))
    [sent] = receiver.received
    now = datetime.now(UTC)
    assert verify_signature(old, sent.headers, sent.body, now) is None
    assert verify_signature(new, sent.headers, sent.body, now) is None
    await shop.store.pool.execute("update bellringer.secrets set previous_until = bellringer.now()")
    await shop.ended(await shop.send(changed))
    assert verify_signature(old, receiver.received[1].headers, receiver.received[1].body, datetime.now(UTC)) is not None


async def test_an_unexpected_status_is_a_failed_attempt_and_tried_again(shop: Shop, receiver: Receiver) -> None:
    receiver.answers = [(500, {}, b"broken"), (204, {}, b"")]
    key = await shop.send({"url": receiver.url}, retry=Retry(3, base="1ms"))
    run = await shop.ended(key)
    assert (run.state, run.attempt) == (State.SUCCEEDED, 2)
    first, _ = await shop.tries(key)
    assert isinstance(first.error, dict)
    assert (first.error["type"], first.error["status"], first.error["body"]) == ("HttpStatus", 500, "broken")
    assert len({sent.headers["webhook-id"] for sent in receiver.received}) == 1


async def test_what_is_expected_is_what_the_target_says(shop: Shop, receiver: Receiver) -> None:
    receiver.answers = [(404, {}, b"")]
    good = await shop.ended(await shop.send({"url": receiver.url, "method": "get", "expect": [404]}))
    bad = await shop.ended(await shop.send({"url": receiver.url, "expect": [200]}, retry=Retry(1)))
    assert (good.state, bad.state) == (State.SUCCEEDED, State.DEAD)
    assert receiver.received[0].method == "GET"


async def test_a_redirect_is_not_followed(shop: Shop, receiver: Receiver) -> None:
    receiver.answers = [(302, {"Location": "http://169.254.169.254/"}, b"")]
    run = await shop.ended(await shop.send({"url": receiver.url}, retry=Retry(1)))
    assert run.state is State.DEAD
    assert run.error["type"] == "redirect_not_followed"
    assert run.error["headers"]["location"] == "http://169.254.169.254/"
    assert len(receiver.received) == 1


async def test_gone_is_never_tried_again(shop: Shop, receiver: Receiver) -> None:
    receiver.answers = [(410, {}, b"")]
    run = await shop.ended(await shop.send({"url": receiver.url}, retry=Retry(9, base="1ms")))
    assert (run.state, run.attempt) == (State.DEAD, 1)
    assert "410" in run.error["reason"]


async def test_the_next_attempt_waits_as_long_as_the_receiver_asks(shop: Shop, receiver: Receiver) -> None:
    receiver.answers = [(429, {"Retry-After": "40"}, b"")]
    key = await shop.send({"url": receiver.url}, retry=Retry(3, base="1ms"))
    run = await shop.until(key, lambda run: run.attempt == 1 and run.state is State.RETRYING)
    [first] = await shop.tries(key)
    assert run.available_at is not None
    assert run.available_at - first.finished_at > timedelta(seconds=35)


async def test_what_is_not_allowed_any_more_is_blocked_when_it_is_called(shop: Shop, receiver: Receiver) -> None:
    open_to_all = Egress.read(["10.0.0.0/8", "127.0.0.0/8"], ())
    stored = await http_targets.prepare_target(
        shop.store, open_to_all, {"url": "http://10.0.0.1/"}, tenant_id=shop.tenant_id
    )
    shop.egress = open_to_all
    run = await shop.ended(await shop.send(stored, retry=Retry(1)))
    assert run.state is State.DEAD
    assert run.error["type"] == "blocked_address"


@pytest.mark.parametrize(
    ("target", "code", "pointer"),
    [
        ({}, "missing_field", "/http/url"),
        ({"url": "https://127.0.0.1/"}, "url_forbidden_address", "/http/url"),
        ({"url": "ftp://example.com"}, "url_invalid", "/http/url"),
        ({"url": "https://a.example", "methode": "GET"}, "unknown_field", "/http/methode"),
        ({"url": "https://a.example", "endpoint": 1}, "unknown_field", "/http/endpoint"),
        ({"url": "https://a.example", "method": "TRACE"}, "choice", "/http/method"),
        ({"url": "https://a.example", "method": 7}, "choice", "/http/method"),
        ({"url": "https://a.example", "headers": {"Host": "b"}}, "header_forbidden", "/http/headers/Host"),
        ({"url": "https://a.example", "headers": {"x": "a\r\nb"}}, "header_invalid", "/http/headers/x"),
        ({"url": "https://a.example", "headers": [1]}, "type", "/http/headers"),
        ({"url": "https://a.example", "body": "x" * 70_000}, "payload_too_large", "/http/body"),
        ({"url": "https://a.example", "method": "GET", "body": "x"}, "conflicting_fields", "/http/body"),
        ({"url": "https://a.example", "timeout": "31s"}, "limit", "/http/timeout"),
        ({"url": "https://a.example", "timeout": "soon"}, "duration_invalid", "/http/timeout"),
        ({"url": "https://a.example", "expect": [302]}, "limit", "/http/expect"),
        ({"url": "https://a.example", "expect": ["200"]}, "limit", "/http/expect"),
        ({"url": "https://a.example", "expect": []}, "limit", "/http/expect"),
        ({"url": "https://a.example", "sign": True}, "missing_field", "/http/secret"),
        ({"url": "https://a.example", "sign": 1, "secret": "x"}, "type", "/http/sign"),
    ],
)
def test_a_target_that_is_invalid_is_refused(target: dict[str, object], code: str, pointer: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_target(target)
    assert (caught.value.code, caught.value.pointer) == (code, pointer)


async def test_a_secret_of_another_tenant_is_unknown_and_without_keys_none_is_kept(shop: Shop, store: Store) -> None:
    stored = await http_targets.prepare_target(
        store, shop.egress, {"url": "https://a.example", "secret": generate_secret()}, tenant_id=shop.tenant_id
    )
    other = await store.pool.fetchval("insert into bellringer.tenants (name) values ('other') returning tenant_id")
    with pytest.raises(InvalidInput) as caught:
        await http_targets.prepare_target(store, shop.egress, stored, tenant_id=other)
    assert caught.value.code == "secret_unknown"
    with pytest.raises(InvalidInput, match="no encryption key is configured"):
        await http_targets.prepare_target(
            store, Egress(), {"url": "https://a.example", "secret": generate_secret()}, tenant_id=shop.tenant_id
        )


def answered(status: int = 200, body: bytes = b"", cut: bool = False, **headers: str) -> HttpResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpResponse(status=status, headers=named, body=body, cut=cut, seconds=0.01)


@pytest.mark.parametrize(
    ("answer", "wait"),
    [
        (answered(429, retry_after="120"), timedelta(seconds=120)),
        (answered(503, retry_after="Mon, 16 Nov 2026 04:01:00 GMT"), timedelta(seconds=60)),
        (answered(503, retry_after="Mon, 16 Nov 2026 03:00:00 GMT"), timedelta(0)),
        (answered(503, retry_after="999999999999"), timedelta(hours=1)),
        (answered(503, retry_after="Mon, 16 Nov 2099 04:00:00 GMT"), timedelta(hours=1)),
        (answered(503, retry_after="later"), None),
        (answered(503, retry_after="-5"), None),
        (answered(503), None),
        (answered(500, retry_after="120"), None),
    ],
)
def test_retry_after_is_read_in_seconds_or_as_a_date(answer: HttpResponse, wait: timedelta | None) -> None:
    assert parse_retry_after(answer, NOW) == wait


def test_a_body_that_is_not_text_is_kept_in_base64() -> None:
    assert response_result(answered(body=b"\xff\x00"))["encoding"] == "base64"
    assert response_result(answered(body=b"a\x01"))["body"] == base64.b64encode(b"a\x01").decode()
    assert response_result(answered(body="grüß\n".encode(), cut=True))["body"] == "grüß\n"
    assert response_result(answered(body=b"x", cut=True))["cut"] is True
