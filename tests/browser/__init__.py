"""The console in a real browser, as those who use it meet it."""
