"""The policies that a run can be made under, by name: their settings, and how each is made of settings and a cluster.

Reads no settings itself: who asks brings them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct

from allmende.simulator.model import Cluster
from allmende.simulator.policies import fifo, priority, settings
from allmende.simulator.policies.allmende import Allmende
from allmende.simulator.ports import Policy


class Offer(NamedTuple):
    """`make(settings, cluster)`, where `settings` is of type `settings` (all of its fields have defaults)."""

    settings: type[Struct]
    make: Callable[[Any, Cluster], Policy]


POLICIES = {
    "allmende": Offer(settings.Settings, Allmende),
    "priority": Offer(priority.Settings, priority.Priority),
    "fifo": Offer(fifo.Settings, fifo.Fifo),
}
