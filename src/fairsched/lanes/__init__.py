"""Lanes at the broker: how lanes are announced, found again and given up.

Read in this order: `fairsched.config.lanes` (the names), `announcement` (the messages), `own_lanes` (when a worker
consumes a lane and when it gives one up), `registry` (the connection of a worker for that).
"""
