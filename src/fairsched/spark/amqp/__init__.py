"""A connection that a task drives itself, and deliveries cut out of its bytes.

Read `session`, then `collected`; `transport` is what makes it quick.
"""
