"""Secrets: set, list and delete. Their values are write-only."""

from __future__ import annotations

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, operation
from bellringer.api.http.request import RequestContext, reply
from bellringer.core.secret_references import check_secret_name
from bellringer.engine import named_secrets
from bellringer.engine.named_secrets import SecretSpec
from bellringer.errors import InvalidInput
from bellringer.store import named_secrets as rows
from bellringer.wire.routes import Routes
from bellringer.wire.secrets import Secret, SecretPage, SecretRequest, no_secret


class SecretMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a secret in a list."""

    name: str

    def __post_init__(self) -> None:
        check_secret_name(self.name)  # a forged cursor may contain text that the database cannot store


@operation(Routes.put_secret, role=Role.ADMIN, problems=(409,))
async def put(call: RequestContext) -> Response:
    """Creates or replaces a secret. Runs that begin afterwards get the new value."""
    request = await call.body(SecretRequest)
    name = check_secret_name(call.part("name"), pointer="")
    before = await rows.get(call.store, call.tenant_id, name)
    spec = SecretSpec(
        name=name,
        value=request.value,
        tasks=(before.tasks if before else ()) if request.tasks is UNSET else request.tasks,
        origins=(before.origins if before else ()) if request.origins is UNSET else request.origins,
        note=(before.note if before else "") if request.note is UNSET else request.note,
    )
    egress = call.service.egress
    stored = await named_secrets.put_secret(call.store, egress, spec, tenant_id=call.tenant_id, who=call.who)
    return reply(_secret(stored))


@operation(Routes.secrets, role=Role.EDITOR, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def listing(call: RequestContext) -> Response:
    """Lists secrets by name, without their values."""
    call.query()
    limit = call.limit()
    mark = call.cursor("secrets", SecretMark)
    found = await rows.list_page(call.store, call.tenant_id, mark.name if mark else None, limit + 1)
    following = call.cursor_to("secrets", SecretMark(found[limit - 1].name)) if len(found) > limit else None
    return reply(SecretPage(items=[_secret(row) for row in found[:limit]], next_cursor=following))


@operation(Routes.secret, role=Role.EDITOR)
async def get(call: RequestContext) -> Response:
    """Returns a secret without its value."""
    call.query()
    stored = await rows.get(call.store, call.tenant_id, _name(call))
    if stored is None:
        raise no_secret()
    return reply(_secret(stored))


@operation(Routes.delete_secret, role=Role.ADMIN)
async def delete(call: RequestContext) -> Response:
    """Deletes a secret. Attempts that refer to it fail with `secret_missing`."""
    await named_secrets.delete_secret(call.store, _name(call), tenant_id=call.tenant_id)
    return Response(status_code=204)


def _name(call: RequestContext) -> str:
    try:
        return check_secret_name(call.part("name"))
    except InvalidInput:
        raise no_secret() from None


def _secret(row: rows.NamedSecretRow) -> Secret:
    values = {name: getattr(row, name) for name in row.__dataclass_fields__ if name != "key_id"}
    return Secret(**{**values, "key": row.key_id, "tasks": list(row.tasks), "origins": list(row.origins)})
