"""Lanes at the broker: the relay that moves the messages of an ingress queue to them.

Read in this order: `fairsched.config.lanes` (the names), `relay` (what moves messages), `backlogs` (what waits for a
lane that refuses them), `moved_properties` (what a copy has of its message).
"""
