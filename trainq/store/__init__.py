"""The tables. Only this room knows SQL or a driver.

A store is a session (connection + transaction + clock) and verbs written once, as functions that take the
transaction. Every write for a running attempt carries its claim, and changes nothing when the claim is not current.
"""
