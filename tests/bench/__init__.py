"""Benchmarks: `python -m tests.bench [NAME…]`, from the checkout, with the trainq of this interpreter.

Each compares two things in one run, interleaved, and prints a ratio; nothing here is asserted. Roots are left in one
temporary directory that is removed at the very end: deleting thousands of files between rounds slows ext4 for minutes.
"""
