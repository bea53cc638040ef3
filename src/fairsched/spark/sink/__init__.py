"""Writing rows as messages.

`writers` is what Spark calls, `messages` makes messages of rows; `fairsched.publisher` publishes them.
"""
