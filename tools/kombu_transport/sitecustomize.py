"""Put fairsched's transport in the place of py-amqp's, in every Python process whose path begins with this folder.

Test suites name their transport "amqp" or "pyamqp" in hundreds of places, and py-amqp's name its class: they run
unchanged.
"""

from __future__ import annotations

import os
import traceback

try:
    import amqp
    import amqp.connection
    import kombu.transport

    from fairsched.integrations import kombu as ours
except BaseException:
    # Python would go on, and the tests would pass by py-amqp.
    traceback.print_exc()
    os._exit(70)

kombu.transport.TRANSPORT_ALIASES.update(
    dict.fromkeys(("amqp", "pyamqp"), "fairsched.integrations.kombu:Transport"),
)
amqp.Connection = amqp.connection.Connection = ours.Connection
amqp.Channel = amqp.channel.Channel = ours.Channel
