"""Secrets in the URL, the headers and the body of an HTTP target: found, encrypted for storage, hidden in responses.

A caller marks a value as a secret with `{"$secret": value}`; values whose field names look secret are treated the
same. `{"$secret": {"name": …}}` refers to a named secret, which the worker looks up, and is stored as it is. The
database holds `{"$sealed": text}`, and responses show `{"$secret": {"set": true}}`; a client that sends that mark back
keeps the stored value. A URL that contains secrets is shown with `***` in their place, and the whole URL is stored
encrypted in `sealed_url`. Every ciphertext is bound to the tenant and to the origin of the URL, so a user who may
change a job can neither read its secrets nor have them sent to another host.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from bellringer.core.secret_references import SECRET_FIELD, parse_reference
from bellringer.egress.secret_box import Sealed, SecretBox, Unsealable
from bellringer.egress.settings import Egress
from bellringer.egress.urls import origin_of, parse_url
from bellringer.errors import InvalidInput


@dataclass(slots=True)
class TargetSecrets:
    """Converts the secrets of one target: `decrypt` first, then `encrypt`.

    `before` is the stored target of the job, which may supply values. A send has none: it only has the values that it
    brings.
    """

    egress: Egress
    tenant_id: int
    before: Mapping[str, Any]
    is_send: bool = False
    _whole_url: bool = False
    _headers: set[str] = field(default_factory=set)  # names of headers marked as secret
    _body: set[str] = field(default_factory=set)  # pointers of secrets in the body
    _references: dict[str, Any] = field(default_factory=dict)  # headers whose value is a reference to a named secret

    def decrypt(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the document with plain values, as it would be sent."""
        plain = {name: value for name, value in document.items() if name != "sealed_url"}
        plain["url"] = self._open_url(document.get("url"), document.get("sealed_url"))
        headers, body = plain.get("headers"), plain.get("body")
        if isinstance(headers, Mapping) and any(isinstance(value, Mapping) for value in headers.values()):
            self._references = {name.lower(): value for name, value in headers.items() if is_reference(value)}
            headers = {name: value for name, value in headers.items() if not is_reference(value)}
            origin = self._origin(plain["url"])  # other errors are found when the headers are validated
            plain["headers"] = {name: self._open_header(name, value, origin) for name, value in headers.items()}
        if isinstance(body, Mapping | list):
            plain["body"], self._body = resolve_marks(
                body, lambda pointer, mark: self._open_body(pointer, mark, self._origin(plain["url"]))
            )
        return plain

    def encrypt(self, document: Mapping[str, Any], url: str) -> dict[str, Any]:
        """Returns the stored form of a plain document. `url` is normalized. An unchanged value keeps its stored
        ciphertext, so that the job does not appear to have changed.
        """
        origin = origin_of(url)
        stored = {**document, "headers": self._sealed_headers(document.get("headers") or {}, origin)}
        stored["headers"] |= self._references
        stored["url"] = mask_url(url, origin, whole=self._whole_url)
        if stored["url"] != url:
            stored["sealed_url"] = self._sealed_url(url, origin)
        if "body" in document:
            stored["body"] = seal_body(
                document["body"], self._body, lambda pointer, value: self._sealed_value(pointer, value, origin)
            )
        return stored

    # The URL

    def _open_url(self, url: object, own: object) -> object:
        if isinstance(url, Mapping) and url.keys() == {SECRET_FIELD}:
            self._whole_url = True
            return url[SECRET_FIELD]
        if not isinstance(url, str) or URL_MASK not in url:
            return url
        stored = own if own is not None else self.before.get("sealed_url") if self.before.get("url") == url else None
        if stored is None or self.is_send:
            raise unknown_secret_error("the url", "/http/url")
        origin = self._origin(url)
        try:
            plain = self._open("url", stored, origin)
        except Unsealable:
            raise unknown_secret_error("the url", "/http/url") from None
        self._whole_url = mask_url(plain, origin, whole=False) != url
        if self._whole_url and mask_url(plain, origin, whole=True) != url:
            raise unknown_secret_error("the url", "/http/url")  # the URL was changed around its secrets
        return plain

    def _sealed_url(self, url: str, origin: str) -> str:
        stored = self.before.get("sealed_url")
        try:
            if isinstance(stored, str) and self._open("url", stored, origin) == url:
                return stored
        except Unsealable:
            pass
        return self._seal("url", url, origin, "/http/url")

    # Headers

    def _open_header(self, name: str, value: object, origin: str) -> object:
        low = name.lower()
        if not isinstance(value, Mapping):
            return value
        if SECRET_FIELD in value and value[SECRET_FIELD] != IS_SET:
            self._headers.add(low)
            return value[SECRET_FIELD]
        stored = value if "sealed" in value else self.before.get("headers", {}).get(low)
        if self.is_send or set(value) - {"sealed", "set", SECRET_FIELD} or not isinstance(stored, Mapping):
            raise unknown_secret_error(f"the header {name}", f"/http/headers/{name}")
        self._headers.add(low)
        try:
            return open_header(self.egress.need_box(), low, stored, tenant_id=self.tenant_id, origin=origin)
        except Unsealable:
            raise unknown_secret_error(f"the header {name}", f"/http/headers/{name}") from None

    def _sealed_headers(self, given: Mapping[str, Any], origin: str) -> dict[str, Any]:
        headers = {name.lower(): value for name, value in given.items()}
        for name, value in headers.items():
            if name in self._headers or is_credential(name):
                headers[name] = self._kept_header(name, value, origin) or self._sealed_header(name, value, origin)
        return headers

    def _kept_header(self, name: str, value: str, origin: str) -> object:
        stored = (self.before.get("headers") or {}).get(name)
        try:
            if isinstance(stored, Mapping):
                box = self.egress.need_box()
                return (
                    stored if open_header(box, name, stored, tenant_id=self.tenant_id, origin=origin) == value else None
                )
        except Unsealable:
            pass
        return None

    def _sealed_header(self, name: str, value: str, origin: str) -> dict[str, str]:
        try:
            return seal_header(self.egress.need_box(), name, value, tenant_id=self.tenant_id, origin=origin)
        except InvalidInput as error:
            error.pointer = f"/http/headers/{name}"
            raise

    # The body

    def _open_body(self, pointer: str, mark: Mapping[str, Any], origin: str) -> object:
        stored = mark if SEALED_FIELD in mark else get_at_pointer(self.before.get("body"), pointer)
        if self.is_send or not isinstance(stored, Mapping) or SEALED_FIELD not in stored:
            raise unknown_secret_error("a secret of the body", f"/http/body{pointer}")
        try:
            return self._open_value(stored, pointer, origin)
        except Unsealable:
            raise unknown_secret_error("a secret of the body", f"/http/body{pointer}") from None

    def _sealed_value(self, pointer: str, value: object, origin: str) -> object:
        stored = get_at_pointer(self.before.get("body"), pointer)
        try:
            if (
                isinstance(stored, Mapping)
                and SEALED_FIELD in stored
                and self._open_value(stored, pointer, origin) == value
            ):
                return stored
        except Unsealable:
            pass
        try:
            box = self.egress.need_box()
        except InvalidInput as error:
            error.pointer = f"/http/body{pointer}"
            raise
        return seal_value(box, value, pointer, origin=origin, tenant_id=self.tenant_id)

    def _open_value(self, stored: Mapping[str, Any], pointer: str, origin: str) -> object:
        box = self.egress.need_box()
        return open_value(box, stored, pointer, origin=origin, tenant_id=self.tenant_id)

    # At rest

    def _origin(self, url: object) -> str:
        return parse_url(url, self.egress.allowed, pointer="/http/url").origin

    def _open(self, what: str, stored: object, origin: str) -> str:
        return open_text(self.egress.need_box(), stored, what=what, origin=origin, tenant_id=self.tenant_id)

    def _seal(self, what: str, text: str, origin: str, pointer: str) -> str:
        try:
            box = self.egress.need_box()
        except InvalidInput as error:
            error.pointer = pointer
            raise
        return seal_text(box, text, what=what, origin=origin, tenant_id=self.tenant_id)


def open_target(egress: Egress, stored: Mapping[str, Any], *, tenant_id: int) -> dict[str, Any]:
    """Returns a stored target with its secrets decrypted, as it is called."""
    origin, plain = origin_of(stored["url"]), dict(stored)
    sealed_url = plain.pop("sealed_url", None)
    if sealed_url is not None:
        box = egress.need_box()
        plain["url"] = open_text(box, sealed_url, what="url", origin=origin, tenant_id=tenant_id)
    headers = stored.get("headers") or {}
    if any(isinstance(value, Mapping) for value in headers.values()):
        box = egress.need_box()
        plain["headers"] = {
            name: open_header(box, name, value, tenant_id=tenant_id, origin=origin)
            if isinstance(value, Mapping)
            else value
            for name, value in headers.items()
        }

    def value_of(pointer: str, mark: Mapping[str, Any]) -> object:
        return open_value(egress.need_box(), mark, pointer, origin=origin, tenant_id=tenant_id)

    if isinstance(stored.get("body"), Mapping | list):
        plain["body"] = open_body(stored["body"], value_of)
    return plain


URL_MASK: Final = "***"
SEALED_FIELD: Final = "$sealed"
IS_SET: Final[Mapping[str, Any]] = {"set": True}
_NAME_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS: Final = frozenset(
    {"password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "token", "tokens", "authorization"}
    | {"auth", "bearer", "jwt", "credential", "credentials", "cookie", "apikey"}
)
_KEY_PREFIXES: Final = frozenset({"api", "access", "private", "secret", "signing", "encryption", "auth", "account"})
_SECRET_QUERY_NAMES: Final = frozenset(
    {"key", "sig", "signature", "hmac", "code"}
)  # used by webhooks of Google and Azure


def is_secret_name(name: str, *, in_query: bool = False) -> bool:
    """Whether a field of this name usually contains a secret: password, accessToken, X-API-KEY; not author or
    keyboard.
    """
    words = [word.lower() for word in _NAME_WORDS.findall(name)]
    if in_query and len(words) == 1 and words[0] in _SECRET_QUERY_NAMES:
        return True
    pairs = pairwise(words)
    return not _SECRET_WORDS.isdisjoint(words) or any(b in ("key", "keys") and a in _KEY_PREFIXES for a, b in pairs)


# The body


def resolve_marks(
    node: Any, resolve: Callable[[str, Mapping[str, Any]], Any], pointer: str = ""
) -> tuple[Any, set[str]]:
    """Returns the body with values in place of secret marks, and the pointers of these values.

    `resolve` returns the value of a mark that has none.
    """
    if is_reference(node):
        return node, set()
    if isinstance(node, Mapping):
        if _is_mark(node):
            given = node.get(SECRET_FIELD, IS_SET)
            return (resolve(pointer, node) if given == IS_SET else given), {pointer}
        plain, marked = {}, set()
        for name, value in node.items():
            plain[name], found = resolve_marks(value, resolve, _child_pointer(pointer, name))
            marked |= found
        return plain, marked
    if isinstance(node, list):
        parts = [resolve_marks(value, resolve, f"{pointer}/{place}") for place, value in enumerate(node)]
        return [value for value, _ in parts], set().union(*(found for _, found in parts))
    return node, set()


def seal_body(node: Any, marked: set[str], seal: Callable[[str, Any], Any], pointer: str = "", name: str = "") -> Any:
    """Returns the stored form of the body: values at the marked pointers, and text under a secret name, are
    encrypted.
    """
    if is_reference(node):
        return node
    is_secret = is_secret_name(name)
    if pointer in marked or (is_secret and isinstance(node, str) and node):
        return seal(pointer, node)
    if isinstance(node, Mapping):
        return {
            inner: seal_body(value, marked, seal, _child_pointer(pointer, inner), name if is_secret else inner)
            for inner, value in node.items()
        }
    if isinstance(node, list):
        return [seal_body(value, marked, seal, f"{pointer}/{place}", name) for place, value in enumerate(node)]
    return node


def open_body(node: Any, open_: Callable[[str, Mapping[str, Any]], Any]) -> Any:
    """Returns the body with its secrets decrypted."""
    return resolve_marks(node, open_)[0]


def hide_body_secrets(node: Any) -> Any:
    """Returns the body for a response. Text under a secret name is hidden, encrypted or not."""
    hidden = {SECRET_FIELD: dict(IS_SET)}
    plain, marked = resolve_marks(node, lambda _pointer, _mark: "")
    return seal_body(plain, marked, lambda _pointer, _value: dict(hidden))


def get_at_pointer(body: Any, pointer: str) -> Any:
    """Returns the value at a JSON pointer, or None."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(body, Mapping):
            body = body.get(name)
        elif isinstance(body, list) and name.isdecimal() and int(name) < len(body):
            body = body[int(name)]
        else:
            return None
    return body


def is_reference(value: object) -> bool:
    """Whether a value refers to a named secret, which the worker looks up: `{"$secret": {"name": …}}`."""
    return parse_reference(value, short=False) is not None


def _is_mark(node: Mapping[str, Any]) -> bool:
    return bool(node) and node.keys() <= {SECRET_FIELD, SEALED_FIELD}


def _child_pointer(pointer: str, name: str) -> str:
    return f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"


# Headers


_CREDENTIAL_HEADER: Final = re.compile(
    r"proxy-.*|(?:.*[-_])?auth(?:[-_].*)?|.*(?:authori[sz]ation|authentication|cookie|token|secret|key|passw|credential).*"
)


def is_credential(name: str) -> bool:
    """Whether a header of this name (lower case) contains a credential. A false positive does no harm."""
    return _CREDENTIAL_HEADER.fullmatch(name) is not None


def seal_header(box: SecretBox, name: str, value: str, *, tenant_id: int, origin: str) -> dict[str, str]:
    """Encrypts a credential for storage."""
    sealed = box.seal(value, tenant_id=tenant_id, secret_id=_header_secret_id(name, origin))
    return {"sealed": f"{sealed.key_id}:{base64.b64encode(sealed.data).decode()}"}


def open_header(box: SecretBox, name: str, stored: Mapping[str, Any], *, tenant_id: int, origin: str) -> str:
    """Decrypts a stored credential. Raises Unsealable if it was stored for another header or origin."""
    key_id, _, text = str(stored.get("sealed", "")).partition(":")
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise Unsealable(f"the stored header {name} is damaged", hint="set the header again") from None
    return box.open(Sealed(key_id, data), tenant_id=tenant_id, secret_id=_header_secret_id(name, origin))


def hide_credentials(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the headers for a response: of a credential it only shows that there is one."""
    return {
        name: value
        if is_reference(value)
        else {"set": True}
        if isinstance(value, Mapping) or is_credential(name.lower())
        else value
        for name, value in stored.items()
    }


def _header_secret_id(name: str, origin: str) -> str:
    return f"header {name} of {origin}"


# The URL


def mask_url(url: str, origin: str, *, whole: bool) -> str:
    """Returns the URL for a response: without the values of secret parameters, or (`whole`) without anything after
    the origin.
    """
    if whole:
        return f"{origin}/{URL_MASK}"
    address, question, query = url.partition("?")
    return f"{address}{question}{'&'.join(map(_mask_parameter, query.split('&')))}" if question else url


def _mask_parameter(text: str) -> str:
    name, equals, value = text.partition("=")
    return f"{name}={URL_MASK}" if equals and value and is_secret_name(unquote(name), in_query=True) else text


# At rest


def seal_text(box: SecretBox, text: str, *, what: str, origin: str, tenant_id: int) -> str:
    """Encrypts a text for storage, bound to its tenant, its field and the origin of the URL."""
    sealed = box.seal(text, tenant_id=tenant_id, secret_id=f"{what} of {origin}")
    return f"{sealed.key_id}:{base64.b64encode(sealed.data).decode()}"


def open_text(box: SecretBox, stored: object, *, what: str, origin: str, tenant_id: int) -> str:
    key_id, _, text = str(stored).partition(":")
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise Unsealable(f"the stored {what} is damaged", hint="set the secret again") from None
    return box.open(Sealed(key_id, data), tenant_id=tenant_id, secret_id=f"{what} of {origin}")


def seal_value(box: SecretBox, value: Any, pointer: str, *, origin: str, tenant_id: int) -> dict[str, str]:
    text = msgspec.json.encode(value).decode()
    return {SEALED_FIELD: seal_text(box, text, what=f"body {pointer}", origin=origin, tenant_id=tenant_id)}


def open_value(box: SecretBox, stored: Mapping[str, Any], pointer: str, *, origin: str, tenant_id: int) -> Any:
    text = open_text(box, stored.get(SEALED_FIELD), what=f"body {pointer}", origin=origin, tenant_id=tenant_id)
    return msgspec.json.decode(text)


def unknown_secret_error(what: str, pointer: str) -> InvalidInput:
    hint = "send the value again: a stored secret is only available to the same job and host"
    return InvalidInput(f"the value of {what} is not stored", hint=hint, pointer=pointer, code="secret_unknown")
