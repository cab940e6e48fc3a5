"""Roles, each with all that the one before it may do; and who is calling."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Role(IntEnum):
    """What a caller may do within its tenant."""

    VIEWER = 1  # read
    OPERATOR = 2  # mend: pause, resume, run, cancel, retry, redrive, freeze
    EDITOR = 3  # define: jobs, calendars, webhooks
    ADMIN = 4  # keys, quotas, audit

    @property
    def word(self) -> str:
        return self.name.lower()


ROLES = {role.word: role for role in Role}


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """One caller, in one tenant. `everywhere`: of the whole installation, so it may name any tenant."""

    tenant_id: int
    tenant: str
    role: Role
    who: str  # as history names it: key:deploy, installation-key:ops, user:ada, local
    everywhere: bool = False
    scopes: frozenset[str] = frozenset()  # tags of the operations that it may use; none: all
    origin: str | None = None  # the address that it calls from

    def actor(self, request_id: str) -> str:
        """Who acts, from where and by which request, as the audit keeps it."""
        return msgspec.json.encode({"who": self.who, "origin": self.origin, "request_id": request_id}).decode()
