"""What is kept in PostgreSQL: its schema, and the statements that read and write it."""
