"""Limits that hold for several processes together.

In the order of reading: `limit_message` (what the processes tell one another), `keeper` (how much each may have),
`holder` (what one process has and needs), `member` (both in one process), `group_limits` (the connection).
docs/design/limits.md has the proof.
"""
