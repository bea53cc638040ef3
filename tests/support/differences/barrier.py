"""Waits until the queues of a RabbitMQ node have done everything that they were told.

A queue of RabbitMQ answers a passive declaration before it takes the messages that came earlier. What has no such
priority is the note that a channel is gone: a process on the node calls every queue with it, as often as a message can
be passed on from one queue to the next.
"""

from __future__ import annotations

import re
import socket

from support.rabbitmq import Node
from support.wireclient import PATIENCE

SERVE = """
{ok, Listening} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}, {nodelay, true}]),
{ok, Port} = inet:port(Listening),
Ask = fun(Queue) -> catch gen_server2:call(amqqueue:get_pid(Queue), {notify_down, self()}, infinity) end,
Serve = fun Serve(Socket) ->
    case gen_tcp:recv(Socket, 1) of
        {ok, <<Times>>} ->
            Queues = rabbit_amqqueue:list(<<"/">>),
            [Ask(Queue) || _ <- lists:seq(1, Times), Queue <- Queues],
            gen_tcp:send(Socket, <<"!">>),
            Serve(Socket);
        _ -> ok
    end
end,
Server = spawn(fun() ->
    receive listen -> ok end,
    {ok, Socket} = gen_tcp:accept(Listening),
    Serve(Socket)
end),
ok = gen_tcp:controlling_process(Listening, Server),
Server ! listen,
{port, Port}.
"""


class Barrier:
    """One process on a node that waits for its queues."""

    def __init__(self, node: Node) -> None:
        answer = node.evaluate(SERVE)
        [port] = re.findall(r"\{port,\s*(\d+)\}", answer)
        self.socket = socket.create_connection(("127.0.0.1", int(port)), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wait(self, hops: int) -> None:
        """Return when every queue has done what it was told, and what they told one another in so many hops."""
        self.socket.sendall(bytes([hops]))
        assert self.socket.recv(1) == b"!"

    def close(self) -> None:
        self.socket.close()
