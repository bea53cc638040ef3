"""Prefetch windows: the number of unsettled messages that each queue may have here.

In the order of reading: `arithmetic` (how large windows have to be), `auto` (the same for ``prefetch="auto"``),
`measure` (round trips and handler times), `control` (from measurements to windows, while a consumer runs), `resize`
(changing a window although AMQP cannot), `hold` (queues that are empty here and backlogged at the broker).
"""
