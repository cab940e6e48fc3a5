"""Who may do what: roles, and a caller as a request has shown itself."""

from bellringer.access.callers import Caller, Role

__all__ = ["Caller", "Role"]
