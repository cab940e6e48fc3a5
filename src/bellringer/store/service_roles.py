"""The SQL that creates database roles with least privilege, and gives a role the settings that sessions need.

The administrator creates the roles; `bellringer migrate`, run by the owner, grants what they need
(`functions/access/service_roles.sql`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bellringer.store.connection_pool import SETTINGS

if TYPE_CHECKING:
    from typing import Any

    import asyncpg

SERVICES: Final = ("api", "scheduler", "worker")
_READ_TARGET: Final = """
select current_database()::text as database, 'bellringer_tenant_' || oid as tenant_role,
       to_regprocedure('bellringer.tenant_role()') is not null as has_schema
from pg_database where datname = current_database()
"""
_TAKE_OWNERSHIP: Final = """\
-- An existing installation gets the new owner.
do $$
declare object record;
begin
  if to_regnamespace('bellringer') is null then return; end if;
  alter schema bellringer owner to {owner};
  for object in
    select format('alter table %s owner to {owner}', oid::regclass) as change from pg_class
    where relnamespace = 'bellringer'::regnamespace and relkind in ('r', 'p')
    union all
    select format('alter routine %s owner to {owner}', oid::regprocedure) from pg_proc
    where pronamespace = 'bellringer'::regnamespace
    union all
    select format('alter type %s owner to {owner}', type.oid::regtype) from pg_type type
    where type.typnamespace = 'bellringer'::regnamespace
      and (type.typtype in ('e', 'd') or type.typtype = 'c' and exists (
        select 1 from pg_class class where class.oid = type.typrelid and class.relkind = 'c'))
  loop
    execute object.change;
  end loop;
end $$;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTarget:
    """The database for which roles are created, and the role of its tenants."""

    database: str
    tenant_role: str

    def group(self, service: str) -> str:
        return self.tenant_role.replace("bellringer_tenant", f"bellringer_{service}", 1)


async def read_role_target(connection: asyncpg.Connection[Any]) -> RoleTarget:
    """Reads the names. Before the first migration, they are those that it will use."""
    found = await connection.fetchrow(_READ_TARGET)
    assert found is not None
    role = await connection.fetchval("select bellringer.tenant_role()") if found["has_schema"] else found["tenant_role"]
    return RoleTarget(database=found["database"], tenant_role=role)


def roles_sql(target: RoleTarget, prefix: str) -> str:
    """Returns the statements that create the owner, the roles of the processes, and the roles that they belong to."""
    owner, database = quote_name(f"{prefix}_owner"), quote_name(target.database)
    logins = {service: quote_name(f"{prefix}_{service}") for service in SERVICES}
    groups = {service: quote_name(target.group(service)) for service in SERVICES}
    tenants = quote_name(target.tenant_role)
    lines = [
        f"-- Run this as an administrator in the database {target.database}, then `bellringer migrate` as {owner}.",
        "-- Give the roles passwords with \\password, or let pg_hba.conf authenticate them by certificate.",
        *(_create(name, "login") for name in (owner, *logins.values())),
        *(_create(name, "nologin") for name in (tenants, *groups.values())),
        *(f"grant {groups[service]} to {logins[service]};" for service in SERVICES),
        f"grant {tenants} to {owner}, {logins['api']};",
        f"grant connect, create on database {database} to {owner};",
        f"grant connect on database {database} to {', '.join(logins.values())};",
        "",
        _TAKE_OWNERSHIP.format(owner=owner),
        "-- Defaults of their sessions, for connections through PgBouncer.",
        *(settings_sql(target, f"{prefix}_{service}") for service in SERVICES),
    ]
    return "\n".join(lines)


def settings_sql(target: RoleTarget, role: str) -> str:
    """Returns the statements that make the settings of Bellringer's sessions defaults of a role in the database."""
    place = f"{quote_name(role)} in database {quote_name(target.database)}"
    return "\n".join(f"alter role {place} set {name} = {_literal(value)};" for name, value in SETTINGS.items())


def quote_name(name: str) -> str:
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


def _create(name: str, kind: str) -> str:
    return f"do $$ begin if to_regrole({_literal(name)}) is null then create role {name} {kind}; end if; end $$;"


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
