"""Models of the REST API, shared by the server and the client, and the table of its routes."""
