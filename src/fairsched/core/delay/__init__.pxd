"""How long messages wait. Compiled into `_codel`; codel.pxd and histogram.pxd into the simulator as well, buckets.pxd
into `_delivery`.

codel.pxd (when a message has waited too long), estimator.pxd (what a duration was lately), histogram.pxd (how durations
are distributed, nearly exact) and buckets.pxd (the same of fixed size, for Prometheus).
"""
