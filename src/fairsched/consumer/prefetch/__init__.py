"""How many unsettled messages each queue may have here: its window.

In the order of reading: `arithmetic` (how large windows have to be), `auto` (the same for ``prefetch="auto"``),
`measure` (round trips and handler times), `control` (from measurements to windows, while a consumer runs), `resize`
(changing a window although AMQP cannot), `hold` (queues that are empty here and backlogged at the broker).
"""
