"""Fair shares over several processes.

In the order of reading: `share_group` (what is charged), `share_message` (what the processes tell each other).
"""
