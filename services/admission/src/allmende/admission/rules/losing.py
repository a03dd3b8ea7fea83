"""A node that an operator declares lost (contract §3): which one may be, and what ends with it. Pure.

Never takes silence for death, and never frees a GPU: that is the agent's word.
"""

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import Change, DeclaredLost, together
from allmende.admission.model.values import Node, NodeKey, Reason, Terms
from allmende.admission.rules import life
from allmende.proto.units import Ms, format_duration


def fault_of(books: Books, key: NodeKey, now_ms: Ms, terms: Terms, *, force: bool) -> Reason | None:
    """Why the node may not be declared lost; None: it may."""
    cluster, name = key
    node = books.nodes.get(key)
    if node is None:
        return Reason("unknown_node", f"cluster {cluster} has never reported {name}; `allmende nodes` lists what there is")
    quiet_ms = now_ms - books.last_seen_ms(node)
    if quiet_ms > terms.silent_after_ms or force or node.lost_at_ms is not None:
        return None
    ago, after = format_duration(max(0, quiet_ms)), format_duration(terms.silent_after_ms)
    sentence = (
        f"{name} gave a sign of life {ago} ago, and counts as silent after {after}; with --force it is declared lost all the same"
    )
    return Reason("node_not_silent", sentence)


def declared(books: Books, node: Node, said: tuple[str, str], now_ms: Ms, terms: Terms) -> tuple[Change, DeclaredLost]:
    """The node is dead, and with it every attempt that has a replica there, whole gangs. `said`: by whom and why.

    They end at the node's last sign of life, which every service is told, so that books do not depend on what was heard when.
    """
    by, reason = said
    seen_ms = books.last_seen_ms(node)
    detail = f"node {node.node} was declared lost by {by} ({reason})"
    changes = []
    for name in sorted(books.on_node.get(node.key, ())):
        attempt = books.attempts[name]
        if not attempt.is_lost:
            end = life.End("node_lost", max(seen_ms, attempt.granted_at_ms), detail=detail)
            changes.append(life.declared_lost(books, name, end, now_ms, terms))
    # At its last report and not later: the agent's next one is newer, and brings the node back.
    dead = replace(node, healthy=0, lost_at_ms=now_ms, lost_reason=f"{by}: {reason}"[:1_000])
    change = together((Change(nodes=(dead,), stirred=(node.cluster,)), *changes))
    fact = DeclaredLost(dead, by, reason, now_ms, seen_ms, tuple(each for each in change.attempts if each.is_lost))
    return change._replace(facts=(fact, *change.facts)), fact
