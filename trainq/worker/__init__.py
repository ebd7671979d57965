"""Runs attempts. An ordinary process of a user: a loop, keepers that are the jobs' parents, a channel to the jobs."""
