"""The bus over NATS and JetStream: the only part of Allmende that talks to the NATS client library.

Publishes many in flight, pulls from durable consumers, asks and answers. Never makes a stream or a consumer (`topology` does),
never decodes a message, and never uses the library's `fetch` and `publish_async`: the first can stall after a reconnect, the
second leaves callers hanging when the server refuses.
"""

from allmende.chassis.bus.connection import NatsBus, connect
from allmende.chassis.bus.pull import NatsDelivery, PullSubscription

__all__ = ["NatsBus", "NatsDelivery", "PullSubscription", "connect"]
