"""Signatures: as Standard Webhooks has them; and secrets, sealed."""

from __future__ import annotations

import base64
import os
from datetime import UTC, datetime, timedelta

import pytest

from bellringer.egress.secret_box import Sealed, Unsealable, generate_secret_key, parse_secret_keys
from bellringer.egress.webhook_signatures import (
    check_secret,
    generate_secret,
    sign_message,
    signed_headers,
    verify_signature,
)
from bellringer.errors import ConfigError, InvalidInput

# The example that the specification's own libraries are tested with.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
AT = datetime.fromtimestamp(1614265330, UTC)
BODY = b'{"test": 2432232314}'


def test_a_signature_is_the_one_that_others_make() -> None:
    signature = sign_message(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", AT, BODY)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_what_was_signed_is_verified_by_either_secret_during_a_rotation() -> None:
    old, new = generate_secret(), generate_secret()
    headers = signed_headers([new, old], "run_1", AT, BODY)
    assert headers["webhook-signature"].count("v1,") == 2
    assert verify_signature(old, headers, BODY, AT) is None
    assert verify_signature(new, {k.title(): v for k, v in headers.items()}, BODY, AT + timedelta(minutes=4)) is None


def test_what_was_changed_or_is_old_is_not_verified() -> None:
    headers = signed_headers([SECRET], "run_1", AT, BODY)
    assert verify_signature(SECRET, headers, BODY + b" ", AT) == "no signature matches this secret"
    assert verify_signature(generate_secret(), headers, BODY, AT) == "no signature matches this secret"
    assert verify_signature(SECRET, {**headers, "webhook-id": "run_2"}, BODY, AT) is not None
    assert "5 minutes" in (verify_signature(SECRET, headers, BODY, AT + timedelta(minutes=6)) or "")
    assert "5 minutes" in (verify_signature(SECRET, headers, BODY, AT - timedelta(minutes=6)) or "")
    assert "not a number of seconds" in (
        verify_signature(SECRET, {**headers, "webhook-timestamp": "x"}, BODY, AT) or ""
    )
    assert "missing" in (verify_signature(SECRET, {"webhook-id": "run_1"}, BODY, AT) or "")


def test_without_a_secret_there_is_no_signature_but_an_id() -> None:
    assert signed_headers([], "run_1", AT, BODY) == {"webhook-id": "run_1", "webhook-timestamp": "1614265330"}


@pytest.mark.parametrize(
    "secret", ["", "abc", "whsec_", "whsec_!!!!", "whsec_" + base64.b64encode(b"x" * 23).decode(), None, 7]
)
def test_a_secret_that_cannot_sign_is_refused_without_being_shown(secret: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_secret(secret)
    assert caught.value.code == "secret_invalid"
    assert not secret or str(secret).removeprefix("whsec_") not in (str(caught.value) or "") or secret == "whsec_"


def test_a_sealed_secret_opens_only_for_its_tenant_and_row() -> None:
    box = parse_secret_keys([generate_secret_key("k1")])
    assert box is not None
    sealed = box.seal(SECRET, tenant_id=1, secret_id="s")
    assert SECRET.encode() not in sealed.data
    assert box.open(sealed, tenant_id=1, secret_id="s") == SECRET
    assert box.seal(SECRET, tenant_id=1, secret_id="s") != sealed  # never the same bytes twice
    for tenant_id, secret_id, data in [(2, "s", sealed.data), (1, "t", sealed.data), (1, "s", sealed.data[:-1])]:
        with pytest.raises(Unsealable):
            box.open(Sealed("k1", data), tenant_id=tenant_id, secret_id=secret_id)


def test_a_new_key_seals_and_the_old_one_still_opens() -> None:
    first, second = generate_secret_key("a"), generate_secret_key("b")
    old, both, new = parse_secret_keys([first]), parse_secret_keys([second, first]), parse_secret_keys([second])
    assert old is not None
    assert both is not None
    assert new is not None
    sealed = old.seal(SECRET, tenant_id=1, secret_id="s")
    assert both.open(sealed, tenant_id=1, secret_id="s") == SECRET
    assert both.seal(SECRET, tenant_id=1, secret_id="s").key_id == "b"
    with pytest.raises(Unsealable, match="'a' is not configured"):
        new.open(sealed, tenant_id=1, secret_id="s")


def test_keys_that_cannot_be_used_are_refused_without_being_shown() -> None:
    assert parse_secret_keys([]) is None
    short = "k:" + base64.b64encode(os.urandom(7)).decode()
    for written in (["nocolon"], [short], ["k:!!"], ["bad id:" + generate_secret_key("x")[2:]]):
        with pytest.raises(ConfigError, match="entry 1 of secret_keys") as caught:
            parse_secret_keys(written)
        assert written[0] not in str(caught.value)
    twice = generate_secret_key("k")
    with pytest.raises(ConfigError, match="two keys"):
        parse_secret_keys([twice, twice])
    box = parse_secret_keys([twice])
    assert twice.partition(":")[2] not in repr(box)
    assert "keys" not in repr(box)


def test_the_same_secret_has_the_same_mark_only_for_its_tenant_and_key() -> None:
    box, other = parse_secret_keys([generate_secret_key("a")]), parse_secret_keys([generate_secret_key("a")])
    assert box is not None
    assert other is not None
    assert box.keyed_hash(SECRET, tenant_id=1) == box.keyed_hash(SECRET, tenant_id=1)
    marks = {
        box.keyed_hash(SECRET, tenant_id=2),
        other.keyed_hash(SECRET, tenant_id=1),
        box.keyed_hash(generate_secret(), tenant_id=1),
    }
    assert box.keyed_hash(SECRET, tenant_id=1) not in marks
    assert len(marks) == 3
