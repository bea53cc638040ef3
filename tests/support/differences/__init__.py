"""The same random session on RabbitMQ and on the embedded broker, to find what they answer differently.

`python -m support.differences` is the command. Read in this order: operations (a session is a list of them), generator
(makes one from a seed), runner (runs one on a broker, and notes all that is observable), documented (the differences
that are known, by name), comparison (finds the first one that is not), shrinker (makes a session that shows it as small
as it gets).
"""

from __future__ import annotations
