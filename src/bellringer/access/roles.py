"""Roles, and the authenticated caller of a request."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Role(IntEnum):
    """The role of a caller within its tenant. Each role includes the permissions of the lower ones."""

    VIEWER = 1  # read
    OPERATOR = 2  # operate: pause, resume, run, cancel, retry, redrive, freeze
    EDITOR = 3  # define: jobs, calendars, webhooks
    ADMIN = 4  # keys, quotas, audit

    @property
    def word(self) -> str:
        return self.name.lower()


ROLES = {role.word: role for role in Role}


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated caller in one tenant. With `everywhere` it belongs to the whole installation and may name any
    tenant.
    """

    tenant_id: int
    tenant: str
    role: Role
    who: str  # name in the history: key:deploy, installation-key:ops, user:ada, local
    everywhere: bool = False
    scopes: frozenset[str] = frozenset()  # tags of the allowed operations; empty: all
    origin: str | None = None  # the caller's IP address

    def actor(self, request_id: str) -> str:
        """Returns the actor as JSON for the audit log: name, origin and request id."""
        return msgspec.json.encode({"who": self.who, "origin": self.origin, "request_id": request_id}).decode()
