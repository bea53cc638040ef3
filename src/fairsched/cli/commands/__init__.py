"""The commands of ``fairsched``: one file each, named as the command, and their list."""

from __future__ import annotations

#: Commands and their one-line help by the heading that ``fairsched --help`` gives them, in this order.
SECTIONS = {
    "Try it": {
        "demo": "Consume ten weighted queues, and show the share each gets.",
        "bench": "Measure how long quiet tenants wait while another floods a worker.",
    },
    "Run a worker": {
        "run": "Consume queues with the handlers of your app.",
        "spread": "Move the messages of one queue to the lanes of their tenants.",
        "check": "Check an app's settings, and that its brokers and queues are there.",
    },
    "Ask a running worker": {
        "top": "Show the shares and waiting messages of its queues or tenants.",
        "explain": "Say why a queue or tenant waits.",
        "control": "Change weights, and pause queues.",
    },
    "Clear up a queue": {
        "replay": "Return dead letters to the queues they came from.",
        "move": "Move messages of a queue to another one.",
        "drop": "Drop messages of a queue.",
    },
    "Calculate, without a broker": {
        "prefetch": "Calculate the prefetch that keeps a handler busy.",
        "route": "Show the queue that consistent hashing chooses for each key.",
        "simulate": "Simulate brokers, queues and consumers.",
    },
    "Run something else": {
        "pipeline": "Run a Spark job on RabbitMQ queues, described in a file.",
        "broker": "Run a small AMQP 0-9-1 broker, instead of RabbitMQ.",
    },
}

#: The one-line help of each command.
COMMANDS = {name: text for commands in SECTIONS.values() for name, text in commands.items()}
