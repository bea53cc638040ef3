"""The time that queues take to drain, for a page by which workers are scaled.

`drain` has the arithmetic; `drain_watch` collects what it needs: the broker's counts (`queue_counts`), what is here,
and handler times. Nothing of it runs before the first request.
"""
