"""Crashes on purpose: at every named point, at every file operation, and at random for minutes (`soak`)."""
