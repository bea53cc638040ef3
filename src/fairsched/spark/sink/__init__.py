"""The sink: publishes rows as messages.

Spark calls `writers`; `messages` converts rows to messages; `fairsched.publisher` publishes them.
"""
