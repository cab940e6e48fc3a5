"""Outgoing HTTP calls to URLs that users supply: SSRF protection, secrets, signatures."""
