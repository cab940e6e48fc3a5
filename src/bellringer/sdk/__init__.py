"""The Python SDK: apps, and handles of tasks, workflows, jobs and runs."""
