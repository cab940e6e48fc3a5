"""Who comes in, and as whom: keys, tokens, the root key, and the person at this machine."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx2
import jwt
import pytest
from structlog.testing import capture_logs

from bellringer.access.api_keys import ApiKeyCredential, generate_api_key
from bellringer.access.jwt_tokens import SharedSecret, TokenRules, TokenVerifier
from bellringer.api.app import create_app
from bellringer.api.http.auth import Authenticator, AuthSettings
from bellringer.clock import SystemClock
from bellringer.store import api_keys
from bellringer.store import tenants as people
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.telemetry import AUTH_FAILURES

JOBS: Final = "/api/v1/jobs"
JOB: Final = {"name": "bell", "task": "demo", "schedule": {"every": "1h"}}
ROOT: Final = "r" * 40
SECRET: Final = "s" * 40

Opened = Callable[..., httpx2.AsyncClient]


class Clock(SystemClock):
    """Goes on by hand."""

    def __init__(self) -> None:
        self.at = 1000.0

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(store: Store, catalog: Catalog, tenants: Store, clock: Clock) -> Opened:
    """A client of an API with such a authenticator, that calls from an address."""

    def open_(settings: AuthSettings | None = None, origin: str = "127.0.0.1", host: str = "localhost:8700") -> Any:
        authenticator = Authenticator(store, catalog, settings or AuthSettings(root_key=ROOT), clock)
        app = create_app(store, catalog, tenants, version="1.2.3", clock=SystemClock(), authenticator=authenticator)
        transport = httpx2.ASGITransport(app=app, client=(origin, 4711))
        return httpx2.AsyncClient(transport=transport, base_url=f"http://{host}", timeout=20)

    return open_


async def made(store: Store, role: str, tenant_id: int | None = 1, **terms: Any) -> ApiKeyCredential:
    key = generate_api_key()
    name = terms.pop("name", role)
    await api_keys.add(store, key, tenant_id=tenant_id, name=name, role=role, who="test", **terms)
    return key


def by(key: ApiKeyCredential | str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key if isinstance(key, str) else key.text}"}


def bare(response: httpx2.Response) -> tuple[int, dict[str, Any], str | None]:
    """An answer without what differs between any two."""
    body = response.json()
    body.pop("request_id", None)
    return response.status_code, body, response.headers.get("www-authenticate")


async def test_a_key_opens_the_door_and_history_names_it(opened: Opened, store: Store) -> None:
    key = await made(store, "editor")
    async with opened() as api:
        created = await api.post(JOBS, json=JOB, headers=by(key))
        assert created.status_code in {201, 202}
        assert (await api.get(JOBS, headers=by(key))).status_code == 200
        assert (await api.get("/healthz")).status_code == 200  # no login for this
    assert await store.pool.fetchval("select who from jobs") == "key:editor"
    used = await store.pool.fetchval("select last_used_at from api_keys")
    assert used is not None


async def test_all_that_is_wrong_with_a_key_is_shown_in_the_same_words(opened: Opened, store: Store) -> None:
    now = datetime.now(UTC)
    revoked = await made(store, "viewer")
    assert await api_keys.revoke(store, revoked.key_id, 1)
    expired = await made(store, "viewer", expires_at=now - timedelta(seconds=1))
    good = await made(store, "viewer")
    wrong = ApiKeyCredential(key_id=good.key_id, secret=generate_api_key().secret)
    given = (generate_api_key().text, revoked.text, expired.text, wrong.text, "nonsense", ROOT + "x", "a.b.c")
    async with opened() as api:
        told = [bare(await api.get(JOBS, headers=by(text))) for text in given]
        told.append(bare(await api.get(JOBS)))
        told.append(bare(await api.get(JOBS, headers={"Authorization": f"Basic {good.text}"})))
        told.append(bare(await api.get(JOBS, params={"access_token": good.text})))
        told.append(bare(await api.get(JOBS, params={"q": good.text}, headers=by(good))))  # it is no secret any more
        assert (await api.get(JOBS, headers=by(good))).status_code == 200
    assert {status for status, _, _ in told} == {401}
    assert {challenge for _, _, challenge in told} == {"Bearer"}
    assert all(body == told[0][1] for _, body, _ in told)
    assert told[0][1]["code"] == "unauthenticated"


async def test_who_guesses_is_stopped_after_ten_and_does_not_lock_out_others(
    opened: Opened, store: Store, clock: Clock
) -> None:
    good, late = await made(store, "viewer"), await made(store, "viewer", name="late")
    async with opened() as api:
        assert (await api.get(JOBS, headers=by(good))).status_code == 200
        answers = [await api.get(JOBS, headers=by(generate_api_key())) for _ in range(11)]
        assert [a.status_code for a in answers] == [401] * 10 + [429]
        assert answers[-1].json()["code"] == "too_many_attempts"
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 7
        assert (await api.get(JOBS, headers=by(late))).status_code == 429  # it might be a guess
        assert (await api.get(JOBS)).status_code == 401  # nothing was guessed
        clock.at += 6  # the good one is not fresh any more, but it was right a moment ago
        assert (await api.get(JOBS, headers=by(good))).status_code == 200
        assert (await api.get(JOBS, headers=by(late))).status_code == 200
        clock.at += 60
        assert (await api.get(JOBS, headers=by(generate_api_key()))).status_code == 401


def failures() -> dict[str, float]:
    """What the metric says, by reason."""
    [metric] = AUTH_FAILURES.collect()
    return {s.labels["reason"]: s.value for s in metric.samples if s.name.endswith("_total")}


async def test_failed_authentication_is_counted_by_reason_and_logged_with_its_address(
    opened: Opened, store: Store
) -> None:
    before = failures()
    good, wrong = await made(store, "viewer"), generate_api_key()
    async with opened(origin="192.0.2.7") as api:
        with capture_logs() as lines:
            await api.get(JOBS, headers=by(good))
            await api.get(JOBS, headers={**by(wrong), "X-Forwarded-For": "203.0.113.9"})
            await api.get(JOBS)
        for headers in (by("a.b.c"), {"Authorization": f"Basic {good.text}"}):
            await api.get(JOBS, headers=headers)
        await api.get(JOBS, params={"access_token": good.text})
        for _ in range(10):
            answer = await api.get(JOBS, headers=by(generate_api_key()))
        assert answer.status_code == 429
    counted = {reason: count - before.get(reason, 0) for reason, count in failures().items()}
    assert counted == {"key": 9, "missing": 1, "token": 1, "scheme": 1, "query": 1, "throttled": 2}
    told = [line for line in lines if line["event"] == "authentication failed"]
    assert [(line["reason"], line["address"], line.get("key_id")) for line in told] == [
        ("key", "192.0.2.7", wrong.key_id),
        ("missing", "192.0.2.7", None),
    ]
    assert wrong.secret not in str(lines)


async def test_the_log_of_failed_authentication_is_rate_limited(opened: Opened, clock: Clock) -> None:
    async with opened(origin="192.0.2.7") as api:
        transport: Any = api._transport
        with capture_logs() as lines:
            for _ in range(50):
                await api.get(JOBS)
            assert len(lines) == 2
            clock.at += 60
            await api.get(JOBS)
            assert [line.get("unlogged") for line in lines] == [None, None, 48]
            for number in range(200):  # many addresses do not fill the log either
                transport.client = (f"198.51.100.{number}", 1)
                await api.get(JOBS)
            assert len(lines) <= 70


async def test_guesses_are_counted_by_address(opened: Opened) -> None:
    async with opened(origin="2001:db8::1") as api:
        transport: Any = api._transport
        for number in range(11):  # one caller has many addresses of IPv6
            transport.client = (f"2001:db8::{number + 1:x}", 1)
            answer = await api.get(JOBS, headers=by(generate_api_key()))
        assert answer.status_code == 429
        transport.client = ("2001:db8:0:1::1", 1)
        assert (await api.get(JOBS, headers=by(generate_api_key()))).status_code == 401


async def test_a_revoked_key_dies_within_five_seconds(opened: Opened, store: Store, clock: Clock) -> None:
    key = await made(store, "viewer")
    async with opened() as api:
        assert (await api.get(JOBS, headers=by(key))).status_code == 200
        assert await api_keys.revoke(store, key.key_id, 1)
        clock.at += 5
        assert (await api.get(JOBS, headers=by(key))).status_code == 401


@pytest.mark.parametrize(
    ("role", "method", "path", "needed"),
    [
        ("viewer", "DELETE", JOBS + "/x", "editor"),
        ("viewer", "POST", JOBS + "/x/pause", "operator"),
        ("operator", "POST", JOBS, "editor"),
        ("editor", "DELETE", JOBS + "/x", None),
        ("operator", "POST", JOBS + "/x/pause", None),
        ("viewer", "GET", JOBS, None),
    ],
)
async def test_each_role_may_what_the_one_before_it_may(
    opened: Opened, store: Store, role: str, method: str, path: str, needed: str | None
) -> None:
    async with opened() as api:
        headers = {**by(await made(store, role)), "X-HTTP-Method-Override": "GET"}
        answer = await api.request(method, path, headers=headers, json=JOB if method == "POST" and needed else None)
    if needed is None:
        assert answer.status_code in {200, 404}
    else:
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert answer.json()["detail"] == f"this needs the role {needed}"


async def test_a_method_that_a_path_does_not_take_is_reported_with_those_that_it_does(opened: Opened) -> None:
    async with opened() as api:
        answer = await api.put("/api/v1/version", headers=by(ROOT))
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_scopes_narrow_a_key(opened: Opened, store: Store) -> None:
    key = await made(store, "admin", scopes=("runs",))
    async with opened() as api:
        assert (await api.get("/api/v1/runs", headers=by(key))).status_code == 200
        assert (await api.get("/api/v1/version", headers=by(key))).status_code == 200
        refused = await api.get(JOBS, headers=by(key))
    assert (refused.status_code, refused.json()["detail"]) == (403, "the scopes of this key do not include jobs")


async def test_what_is_of_the_installation_is_not_there_for_a_tenant(opened: Opened, store: Store) -> None:
    async with opened() as api:
        admin = by(await made(store, "admin"))
        told = bare(await api.get("/metrics", headers=admin))
        assert told == bare(await api.get("/nowhere", headers=admin))
        assert told[0] == 404
        assert (await api.get("/metrics", headers=by(ROOT))).status_code == 200
        assert (await api.get("/metrics", headers=by(await made(store, "viewer", None)))).status_code == 200


async def test_callers_of_the_installation_name_a_tenant_and_others_only_their_own(
    opened: Opened, store: Store
) -> None:
    await store.pool.execute("insert into tenants (name) values ('acme'), ('other')")
    acme = await people.get_by_name(store, "acme")
    assert acme is not None
    key = await made(store, "admin", acme.tenant_id)
    async with opened() as api:
        for name in ("acme", "other", None):
            named = {"X-Tenant": name} if name else {}
            assert (await api.post(JOBS, json=JOB, headers={**by(ROOT), **named})).is_success
        assert (await api.get(JOBS, headers=[*by(ROOT).items(), ("X-Tenant", "a\0b")])).status_code == 404
        unknown = await api.get(JOBS, headers={**by(ROOT), "X-Tenant": "nobody"})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
        assert (await api.get(JOBS, headers={**by(key), "X-Tenant": "acme"})).json()["items"][0]["name"] == "bell"
        foreign = await api.get(JOBS, headers={**by(key), "X-Tenant": "other"})
        missing = await api.get(JOBS, headers={**by(key), "X-Tenant": "nobody"})
        assert bare(foreign) == bare(missing) == bare(unknown)
    rows = await store.pool.fetch("select t.name from jobs j join tenants t using (tenant_id) order by 1")
    assert [row["name"] for row in rows] == ["acme", "default", "other"]


async def test_a_suspended_tenant_reads_and_changes_nothing(opened: Opened, store: Store) -> None:
    key = await made(store, "admin")
    await store.pool.execute("update tenants set suspended_at = now()")
    async with opened() as api:
        assert (await api.get(JOBS, headers=by(key))).status_code == 200
        answer = await api.post(JOBS, json=JOB, headers=by(key))
    assert (answer.status_code, answer.json()["code"]) == (403, "tenant_suspended")
    assert await store.pool.fetchval("select count(*) from jobs") == 0


@pytest.mark.parametrize(
    ("origin", "host", "headers", "status"),
    [
        ("127.0.0.1", "localhost:8700", {}, 202),
        ("127.0.0.1", "127.0.0.1:8700", {}, 202),
        ("::1", "[::1]:8700", {}, 202),
        ("::ffff:127.0.0.1", "localhost", {}, 202),
        ("127.0.0.1", "localhost:8700", {"Origin": "http://localhost:8700"}, 202),
        ("127.0.0.1", "evil.example", {}, 401),  # a name that was bound to this machine anew
        ("127.0.0.1", "localhost.evil.example", {}, 401),
        ("127.0.0.1", "localhost:8700", {"Origin": "https://evil.example"}, 401),
        ("127.0.0.1", "localhost:8700", {"Origin": "http://localhost:9000"}, 401),
        ("127.0.0.1", "localhost:8700", {"Origin": "null"}, 401),
        ("127.0.0.1", "localhost:8700", {"X-Forwarded-For": "203.0.113.9"}, 401),  # a proxy of this machine
        ("203.0.113.9", "localhost:8700", {}, 401),
        ("203.0.113.9", "localhost:8700", {"X-Forwarded-For": "127.0.0.1"}, 401),
    ],
)
async def test_only_the_person_at_this_machine_needs_no_login(
    opened: Opened, origin: str, host: str, headers: dict[str, str], status: int
) -> None:
    async with opened(AuthSettings(open_to="here", root_key=ROOT), origin) as api:
        answer = await api.post(JOBS, json=JOB, headers={"Host": host, **headers})
        assert answer.status_code in {status, status - 1 if status == 202 else status}, answer.text
        if "Origin" not in headers:
            seen = await api.get(JOBS, headers={"Host": host, **headers})
            assert seen.status_code == (200 if status == 202 else 401)
        assert (await api.get(JOBS, headers={"Host": host, **by(ROOT)})).status_code == 200  # from anywhere, by a key


async def test_a_wrong_key_is_refused_though_none_would_be_needed(opened: Opened) -> None:
    async with opened(AuthSettings(open_to="here")) as api:
        assert (await api.get(JOBS)).status_code == 200
        assert (await api.get(JOBS, headers=by(generate_api_key()))).status_code == 401


async def test_insecure_means_anyone_but_not_a_page_of_elsewhere(opened: Opened) -> None:
    async with opened(AuthSettings(open_to="anyone"), origin="203.0.113.9", host="bell.example") as api:
        assert (await api.post(JOBS, json=JOB)).is_success
        crossed = await api.post(JOBS, json={**JOB, "name": "two"}, headers={"Origin": "https://evil.example"})
        assert crossed.status_code == 401


async def test_a_token_of_the_issuer_opens_the_door_of_its_tenant(opened: Opened, store: Store) -> None:
    rules = TokenRules(issuer="https://id.example", audience="bell", tenant_claim="org", role_claim="may")
    settings = AuthSettings(tokens=TokenVerifier(rules, SharedSecret(SECRET), SystemClock()))
    said = {"iss": "https://id.example", "aud": "bell", "sub": "ada", "org": "default", "may": "editor"}
    ends = datetime.now(UTC).timestamp() + 60

    def token(**other: Any) -> str:
        return jwt.encode({**said, "exp": ends, **other}, SECRET, "HS256")

    async with opened(settings) as api:
        assert (await api.post(JOBS, json=JOB, headers=by(token()))).is_success
        assert (await api.delete(JOBS + "/bell", headers=by(token(may="viewer")))).status_code == 403
        assert (await api.get("/metrics", headers=by(token(may="admin")))).status_code == 404
        refused = [
            token(org="nobody"),
            token(aud="other"),
            token(exp=1),
            jwt.encode({**said, "exp": ends}, "", "none"),
        ]
        told = [bare(await api.get(JOBS, headers=by(text))) for text in refused]
        assert [status for status, _, _ in told] == [401] * 4
        nothing = bare(await api.get(JOBS))
        assert all(one == nothing for one in told)
    assert await store.pool.fetchval("select who from jobs") == "user:ada"


async def test_a_tenants_rate_is_reported_and_kept(opened: Opened, store: Store, clock: Clock) -> None:
    await store.pool.execute("""update tenants set quotas = '{"api_per_minute": 3}'""")
    key = await made(store, "viewer")
    async with opened() as api:
        answers = [await api.get(path, headers=by(key)) for path in (JOBS, JOBS + "/x", JOBS, JOBS)]
        assert [a.status_code for a in answers] == [200, 404, 200, 429]
        assert [a.headers["ratelimit"] for a in answers] == [
            '"api";r=2;t=20', '"api";r=1;t=40', '"api";r=0;t=60', '"api";r=0;t=60',
        ]  # fmt: skip
        assert {a.headers["ratelimit-policy"] for a in answers} == {'"api";q=3;w=60'}
        assert (answers[-1].json()["code"], answers[-1].headers["retry-after"]) == ("rate_limited", "21")
        clock.at += 20
        assert (await api.get(JOBS, headers=by(key))).status_code == 200
        assert "ratelimit" not in (await api.get("/healthz")).headers


async def test_the_server_that_suspends_a_tenant_heeds_it_at_once(opened: Opened, store: Store) -> None:
    key, run = await made(store, "editor"), {"task": "demo"}
    async with opened() as api:
        assert (await api.post(f"{JOBS}/execute", json=run, headers=by(key))).status_code == 202
        for suspended, status in ((True, 403), (False, 202)):
            patched = await api.patch("/api/v1/tenants/default", json={"suspended": suspended}, headers=by(ROOT))
            assert patched.status_code == 200
            assert (await api.post(f"{JOBS}/execute", json=run, headers=by(key))).status_code == status


async def test_the_server_that_revokes_a_key_heeds_it_at_once(opened: Opened, store: Store) -> None:
    key = await made(store, "editor")
    async with opened() as api:
        assert (await api.get(JOBS, headers=by(key))).status_code == 200
        assert (await api.delete(f"/api/v1/api-keys/{key.key_id}", headers=by(ROOT))).status_code == 204
        assert (await api.get(JOBS, headers=by(key))).status_code == 401


async def test_sends_count_against_the_fires_of_a_minute(opened: Opened, store: Store, clock: Clock) -> None:
    await store.pool.execute("""update tenants set quotas = '{"fires_per_minute": 2}'""")
    key = await made(store, "editor")
    async with opened() as api:
        sent = [await api.post(JOBS + "/execute", json={"task": "demo"}, headers=by(key)) for _ in range(3)]
        assert [a.status_code for a in sent] == [202, 202, 429]
        told = sent[-1].json()
        assert (told["code"], told["retryable"], sent[-1].headers["retry-after"]) == ("quota_exceeded", True, "31")
        clock.at += 31
        assert (await api.post(JOBS + "/execute", json={"task": "demo"}, headers=by(key))).status_code == 202


async def test_a_cursor_is_good_for_its_tenant_and_as_it_was_written(opened: Opened, store: Store) -> None:
    await store.pool.execute("insert into tenants (name) values ('acme')")
    acme = {**by(ROOT), "X-Tenant": "acme"}
    async with opened() as api:
        for headers in (by(ROOT), acme):
            for name in ("a", "b"):
                assert (await api.post(JOBS, json={**JOB, "name": name}, headers=headers)).is_success
        cursor = (await api.get(JOBS, params={"limit": 1}, headers=by(ROOT))).json()["next_cursor"]
        good = await api.get(JOBS, params={"cursor": cursor}, headers=by(ROOT))
        assert [job["name"] for job in good.json()["items"]] == ["b"]
        data = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        unsigned = base64.urlsafe_b64encode(hashlib.sha256(data[16:]).digest()[:16] + data[16:]).rstrip(b"=").decode()
        for forged, headers in ((cursor, acme), (cursor[:-2] + "AA", by(ROOT)), (unsigned, by(ROOT)), ("", by(ROOT))):
            refused = await api.get(JOBS, params={"cursor": forged}, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (400, "cursor_invalid")
