"""The three ways to execute a handler: coroutines on event loops, threads, and child processes."""
