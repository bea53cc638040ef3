"""Waiting for a socket: pika's event loop, in a thread of its own, which others may use meanwhile.

In the order of reading: `ioloop` (waking it), `pacing` (reading many messages at a time), `lending` (a thread that
takes messages reads the socket itself).
"""
