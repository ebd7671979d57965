"""What runs a job. A local executor gives a plan (argv), the worker's keeper runs it."""
