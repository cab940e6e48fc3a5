"""E-mail over TLS: STARTTLS and smtps with a real SMTP server, a wrong authority, and a server without TLS."""

from __future__ import annotations

import asyncio
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult
from tests.integration.egress.test_notifications import Mailbox, authenticate
from tests.unit.egress.test_notification_payloads import OPEN
from tools.servers.certificates import Authority

from bellringer.egress.mail import MailRefused, MailSettings, parse_mail_settings, render_mail, send_mail

URLS = {"starttls": "smtp://bell:s3cret@127.0.0.1:{port}", "smtps": "smtps://bell:s3cret@127.0.0.1:{port}"}


class Watched(Mailbox):
    """A mailbox that notes every login."""

    def __init__(self) -> None:
        super().__init__()
        self.logins = 0

    def authenticate(self, *arguments: Any) -> AuthResult:
        self.logins += 1
        return authenticate(*arguments)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "trusted")


@asynccontextmanager
async def serve_mail(way: str, authority: Authority | None) -> AsyncIterator[tuple[Watched, MailSettings]]:
    """Yields a mail server that logs in over TLS only, and the settings that a user would write for it."""
    box, context = Watched(), None
    if authority is not None:
        files = authority.issue("mail")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(files.cert, files.key)
    starttls = context if way == "starttls" else None
    options: dict[str, Any] = {
        "authenticator": box.authenticate,
        "auth_required": True,
        "auth_require_tls": starttls is not None,
        "require_starttls": starttls is not None,
    }

    def protocol() -> SMTP:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of logins without STARTTLS
            return SMTP(box, tls_context=starttls, **options)

    server = await asyncio.get_running_loop().create_server(
        protocol, "127.0.0.1", 0, ssl=context if way == "smtps" else None
    )
    port = server.sockets[0].getsockname()[1]
    settings = parse_mail_settings(URLS[way].format(port=port), "Bellringer <bell@example.com>")
    assert settings is not None
    try:
        yield box, settings
    finally:
        server.close()
        await server.wait_closed()


async def send(settings: MailSettings) -> dict[str, str]:
    mail = render_mail(OPEN, settings, ["ops@example.com"], number=7, public_url=None)
    return await send_mail(mail, settings, ["ops@example.com"])


@pytest.mark.parametrize("way", URLS)
async def test_mail_is_sent_over_tls(way: str, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    async with serve_mail(way, authority) as (box, settings):
        assert await send(settings) == {}
    [mail] = box.mails
    assert isinstance(mail, Message)
    assert "nightly" in str(mail["Subject"])
    assert box.logins == 1


@pytest.mark.parametrize("way", URLS)
async def test_a_server_with_a_certificate_of_another_authority_gets_no_password(
    way: str, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    async with serve_mail(way, Authority(tmp_path / "other")) as (box, settings):
        with pytest.raises(MailRefused, match="certificate verify failed") as refused:
            await send(settings)
    assert not refused.value.is_final  # a certificate is replaced, and the next attempt succeeds
    assert (box.mails, box.logins) == ([], 0)


async def test_a_server_without_starttls_gets_no_password() -> None:
    async with serve_mail("starttls", None) as (box, settings):
        assert settings.starttls == "required"
        with pytest.raises(MailRefused, match="STARTTLS"):
            await send(settings)
    assert (box.mails, box.logins) == ([], 0)
