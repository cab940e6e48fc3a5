"""Sends notification messages by e-mail, over SMTP."""

from __future__ import annotations

import asyncio
import re
import smtplib
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import format_datetime, parseaddr
from html import escape
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from bellringer.core.notifications import NotificationMessage
from bellringer.egress.notification_payloads import headline, text_lines
from bellringer.errors import ConfigError, InvalidInput

SMTP_TIMEOUT_SECONDS: Final = 20.0
MAX_RECIPIENTS: Final = 50
MAX_SUBJECT_LENGTH: Final = 200  # characters
STARTTLS_MODES: Final = ("required", "auto", "off")
_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
_DEFAULT_PORTS: Final = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True, slots=True, kw_only=True)
class MailSettings:
    """The SMTP server and the sender."""

    host: str
    port: int
    is_tls: bool  # TLS from the start (smtps)
    starttls: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    sender: str


class MailRefused(Exception):
    """The server does not accept the message; `is_final` if it would refuse it again."""

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


def parse_mail_settings(url: str | None, sender: str | None) -> MailSettings | None:
    """Parses the settings smtp_url and smtp_from. None if there is no server. Raises ConfigError.

    `smtp://user:password@host:587?starttls=required`: `starttls` is required, auto or off; the default is required with
    a password, and auto without. `smtps://` uses TLS from the start.
    """
    if url is None:
        return None
    parts = urlsplit(url)
    hint = "write it like smtp://user:password@mail.example.com:587"
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or port == 0:
        raise ConfigError("smtp_url is not the URL of a mail server", hint=hint)
    given = parse_qs(parts.query)
    starttls = given.get("starttls", ["required" if parts.password else "auto"])[-1]
    if starttls not in STARTTLS_MODES or set(given) - {"starttls"}:
        raise ConfigError("smtp_url has an unknown option", hint=f"use ?starttls={' or '.join(STARTTLS_MODES)}")
    if sender is None or "@" not in parseaddr(sender)[1]:
        raise ConfigError("smtp_url needs smtp_from, the address of the sender", hint="smtp_from = bell@example.com")
    return MailSettings(
        host=parts.hostname,
        port=port or _DEFAULT_PORTS[parts.scheme],
        is_tls=parts.scheme == "smtps",
        starttls=starttls,
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        sender=sender,
    )


def check_recipients(addresses: Sequence[object], *, pointer: str = "/to") -> list[str]:
    """Returns the addresses if each is valid. Raises InvalidInput."""
    if not 0 < len(addresses) <= MAX_RECIPIENTS:
        raise InvalidInput(f"give 1 to {MAX_RECIPIENTS} addresses", pointer=pointer, code="limit")
    for place, address in enumerate(addresses):
        if not isinstance(address, str) or len(address) > 254 or not _ADDRESS.fullmatch(address):
            hint = "write it like team@example.com"
            raise InvalidInput("not an e-mail address", hint=hint, pointer=f"{pointer}/{place}", code="email_invalid")
    return [str(address) for address in addresses]


def render_mail(
    message: NotificationMessage, settings: MailSettings, to: Sequence[str], *, number: int, public_url: str | None
) -> EmailMessage:
    """Returns the e-mail. Repeated deliveries have the same Message-ID; messages of an incident form a thread."""
    domain = parseaddr(settings.sender)[1].rpartition("@")[2]
    lines = [*text_lines(message, public_url)]
    mail = EmailMessage()
    mail["From"] = settings.sender
    mail["To"] = ", ".join(to)
    mail["Subject"] = headline(message)[:MAX_SUBJECT_LENGTH].replace("\r", " ").replace("\n", " ")
    mail["Date"] = format_datetime(message.at)
    mail["Message-ID"] = f"<notification-{number}@{domain}>"
    mail["References"] = f"<{message.dedup_key}@{domain}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content("\n".join(lines) + "\n")
    mail.add_alternative(_html(lines), subtype="html")
    return mail


def _html(lines: Sequence[str]) -> str:
    shown = []
    for line in lines:
        text = escape(line)
        shown.append(f'<a href="{text}">{text}</a>' if line.startswith(("http://", "https://")) else text)
    return "<html><body><p>" + "<br>\n".join(shown) + "</p></body></html>\n"


async def send_mail(mail: EmailMessage, settings: MailSettings, to: Sequence[str]) -> dict[str, str]:
    """Sends a mail in a thread. Returns the refused recipients with the reasons. Raises MailRefused."""
    return await asyncio.to_thread(_send, mail, settings, list(to))


def _send(mail: EmailMessage, settings: MailSettings, to: list[str]) -> dict[str, str]:
    try:
        with _connect(settings) as server:
            if settings.user is not None:
                server.login(settings.user, settings.password or "")
            refused = server.send_message(mail, to_addrs=to)
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        shown = ", ".join(f"{address}: {code}" for address, (code, _) in error.recipients.items())
        raise MailRefused(f"all recipients were refused ({shown})", is_final=all(c >= 500 for c in codes)) from None
    except smtplib.SMTPResponseException as error:
        text = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        raise MailRefused(
            f"the mail server said {error.smtp_code} {text[:200]}", is_final=error.smtp_code >= 500
        ) from None
    except (smtplib.SMTPException, ssl.SSLError, OSError) as error:
        where = f"{settings.host}:{settings.port}"
        raise MailRefused(f"{where}: {error or type(error).__name__}", is_final=False) from None
    return {address: f"{code} {text.decode(errors='replace')}" for address, (code, text) in refused.items()}


def _connect(settings: MailSettings) -> smtplib.SMTP:
    context = ssl.create_default_context()
    if settings.is_tls:
        return smtplib.SMTP_SSL(settings.host, settings.port, timeout=SMTP_TIMEOUT_SECONDS, context=context)
    server = smtplib.SMTP(settings.host, settings.port, timeout=SMTP_TIMEOUT_SECONDS)
    try:
        server.ehlo()
        if settings.starttls == "required" or (settings.starttls == "auto" and server.has_extn("starttls")):
            server.starttls(context=context)
            server.ehlo()
    except BaseException:
        with suppress(OSError, smtplib.SMTPException):
            server.close()
        raise
    return server
