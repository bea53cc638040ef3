"""How long messages wait. Compiled into `_codel`; codel.pxd and histogram.pxd into the simulator as well.

Three headers that do not need each other: codel.pxd (when a message has waited too long), estimator.pxd (what a
duration was lately) and histogram.pxd (how durations are distributed).
"""
