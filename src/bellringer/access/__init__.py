"""Access control: roles, API keys, JSON Web Tokens and quotas."""

from bellringer.access.roles import ROLES, Caller, Role

__all__ = ["ROLES", "Caller", "Role"]
