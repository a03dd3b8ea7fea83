"""Which GPU of which node belongs to which attempt. Pure.

Never decides where an attempt runs: admission names the nodes, this only hands out device indices on them.
"""

from collections.abc import Iterable

from allmende.agent.sdk.backend import NodeState, ReplicaPlace
from allmende.proto.admission import Placed


class Devices:
    """The devices of a cluster. A device is taken from the grant until the end of its attempt."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeState] = {}
        self._taken: dict[str, set[int]] = {}

    @property
    def nodes(self) -> tuple[NodeState, ...]:
        """All nodes ever reported, as they are now."""
        return tuple(self._nodes.values())

    def healthy(self, node: str) -> bool:
        """True when the node is known and has a healthy GPU."""
        return node in self._nodes and self._nodes[node].healthy_gpus > 0

    def report(self, state: NodeState) -> bool:
        """Take in a node's state; True when it differs from what was known."""
        changed = self._nodes.get(state.node) != state
        self._nodes[state.node] = state
        self._taken.setdefault(state.node, set())
        return changed

    def hold(self, places: Iterable[ReplicaPlace]) -> None:
        """Take exactly these devices, whether or not their node has been reported yet."""
        for place in places:
            self._taken.setdefault(place.node, set()).update(place.devices)

    def take(self, placement: Iterable[Placed], gpus_per_replica: int) -> tuple[ReplicaPlace, ...] | str:
        """Take devices for all replicas, numbered on through the nodes in order; or a sentence that says why not."""
        places: list[ReplicaPlace] = []
        for placed in placement:
            state = self._nodes.get(placed.node)
            if state is None:
                return self._undo(places, f"this cluster has no node {placed.node}")
            taken = self._taken[placed.node]
            wanted = placed.replicas * gpus_per_replica
            if state.healthy_gpus - len(taken) < wanted:
                sentence = f"node {placed.node} has {state.healthy_gpus} healthy GPUs, {len(taken)} taken; {wanted} were granted"
                return self._undo(places, sentence)
            free = [device for device in range(state.installed_gpus) if device not in taken]
            for number in range(placed.replicas):
                devices = tuple(free[number * gpus_per_replica : (number + 1) * gpus_per_replica])
                taken.update(devices)
                places.append(ReplicaPlace(len(places), placed.node, devices))
        return tuple(places)

    def give_back(self, places: Iterable[ReplicaPlace]) -> None:
        """The devices are free again."""
        for place in places:
            self._taken[place.node].difference_update(place.devices)

    def _undo(self, places: Iterable[ReplicaPlace], sentence: str) -> str:
        self.give_back(places)
        return sentence
