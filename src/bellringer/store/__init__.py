"""PostgreSQL access: connections, schema, SQL functions, and one module with its statements per noun."""
