"""What a Python program imports: its app, and handles on tasks, jobs and runs."""
