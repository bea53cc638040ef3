"""Writing rows as messages.

`writers` is what Spark calls, `messages` makes messages of rows, and `publisher` waits for the broker's confirms.
"""
