"""Methods of AMQP 0-9-1 as pamqp has them, by the sender, with values for their arguments."""

from __future__ import annotations

from typing import Any

from pamqp import base, commands

CLIENTS = [
    commands.Connection.StartOk, commands.Connection.TuneOk, commands.Connection.Open,
    commands.Connection.Close,
    commands.Channel.Open, commands.Channel.Flow, commands.Channel.FlowOk, commands.Channel.Close,
    commands.Exchange.Declare, commands.Exchange.Delete, commands.Exchange.Bind, commands.Exchange.Unbind,
    commands.Queue.Declare, commands.Queue.Bind, commands.Queue.Unbind, commands.Queue.Purge, commands.Queue.Delete,
    commands.Basic.Qos, commands.Basic.Consume, commands.Basic.Cancel,
    commands.Basic.Publish, commands.Basic.Get, commands.Basic.Ack, commands.Basic.Nack, commands.Basic.Reject,
    commands.Basic.Recover, commands.Basic.RecoverAsync, commands.Confirm.Select,
]  # fmt: skip
BROKERS = [
    commands.Connection.Start, commands.Connection.Tune, commands.Connection.OpenOk,
    commands.Connection.Close, commands.Connection.CloseOk, commands.Connection.Blocked,
    commands.Connection.Unblocked, commands.Connection.UpdateSecretOk,
    commands.Channel.FlowOk, commands.Channel.Close, commands.Channel.CloseOk,
    commands.Exchange.DeclareOk, commands.Exchange.DeleteOk, commands.Exchange.BindOk, commands.Exchange.UnbindOk,
    commands.Queue.DeclareOk, commands.Queue.BindOk, commands.Queue.UnbindOk, commands.Queue.PurgeOk,
    commands.Queue.DeleteOk,
    commands.Basic.QosOk, commands.Basic.ConsumeOk, commands.Basic.Cancel, commands.Basic.CancelOk,
    commands.Basic.GetEmpty, commands.Basic.Ack, commands.Basic.Nack, commands.Basic.RecoverOk,
    commands.Confirm.SelectOk, commands.Tx.SelectOk, commands.Tx.CommitOk, commands.Tx.RollbackOk,
]  # fmt: skip
#: Arguments that the specification reserves, or that have one value.
RESERVED = {
    "ticket": 0, "capabilities": "", "insist": False, "out_of_band": "0", "known_hosts": "",
    "cluster_id": "", "version_major": 0, "version_minor": 9,
}  # fmt: skip

#: Values by the types that pamqp has for arguments; of bits, the other value is False.
EXAMPLES = {
    "shortstr": "ab.9", "longstr": "xyz", "table": {"x": [1, {"y": "z"}], "a": {}, "b": 2.5}, "short": 513,
    "long": 2**31 + 5, "longlong": 2**62 + 3, "bit": True,
}  # fmt: skip


def filled(kind: type[base.Frame], values: dict[str, Any]) -> base.Frame:
    """Make a method of values by their names, or by their types."""
    method = kind.__new__(kind)
    for name in kind.__slots__:
        value = values[name] if name in values else values.get(kind.amqp_type(name))
        setattr(method, name, RESERVED.get(name, value))
    return method
