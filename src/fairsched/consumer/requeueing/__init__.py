"""Messages that go back to the queue they came from, and when they do not.

In the order of reading: `codel_returns` (what waited here too long), `budget` (how often a message may go back),
`content` (how a message is known again), `pace` (requeueing slowly what fails again), `late_returns` (queues that delay
what goes back).
"""
