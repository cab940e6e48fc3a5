"""Who may do what: roles, keys and tokens, and a caller as a request has shown itself."""

from bellringer.access.callers import ROLES, Caller, Role

__all__ = ["ROLES", "Caller", "Role"]
