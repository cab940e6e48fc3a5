"""The worker: claims runs, executes their tasks, settles what became of them."""
