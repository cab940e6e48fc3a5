"""The HTTP framework: connections, routing, authentication, requests, responses, OpenAPI."""
