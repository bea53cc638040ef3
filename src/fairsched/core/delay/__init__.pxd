"""Delays of messages: CoDel, durations, histograms. Compiled into `_codel`; codel.pxd and histogram.pxd into the
simulator as well, buckets.pxd into `_delivery`.

codel.pxd (whether a message has waited too long), estimator.pxd (recent values of a duration), histogram.pxd (nearly
exact distributions of durations) and buckets.pxd (histograms of fixed size, for Prometheus).
"""
