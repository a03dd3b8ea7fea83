"""Cordoned nodes (contract §7, Drain): which word counts, and when others may rely on it. Pure.

Never decides who is cordoned: the preemptor does, and it alone tells anybody to leave.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import NOTHING, Change, Closed
from allmende.admission.model.values import Cordon
from allmende.proto.units import Ms


def heard(books: Books, word: Cordon, now_ms: Ms) -> Change:
    """A word about a node's cordon; an older one than is known changes nothing."""
    had = books.cordons[word.cluster].get(word.node)
    if had is not None and had.revision >= word.revision:
        return NOTHING
    change = Change(cordons=(word,), stirred=(word.cluster,))
    if word.from_ms is None or word.from_ms > now_ms:
        return change
    return _confirmed(books, word)._replace(stirred=(word.cluster,))


def begun(books: Books, cluster: str, node: str, now_ms: Ms) -> Change:
    """The instant has come from which nothing new is granted there."""
    cordon = books.cordons[cluster].get(node)
    if cordon is None or cordon.confirmed or cordon.from_ms is None or cordon.from_ms > now_ms:
        return NOTHING
    return _confirmed(books, cordon)


def _confirmed(books: Books, cordon: Cordon) -> Change:
    # From this change on no pass places anything there, so what was granted until now is all.
    known = replace(cordon, confirmed=True)
    return Change(cordons=(known,), facts=(Closed(known, books.cluster(cordon.cluster).grant_seq),))


def closed_now(cordons: Mapping[str, Cordon], now_ms: Ms) -> frozenset[str]:
    """Nodes that take nothing new."""
    return frozenset(name for name, each in cordons.items() if each.from_ms is not None and each.from_ms <= now_ms)


def closing(cordons: Mapping[str, Cordon], now_ms: Ms) -> dict[str, Ms]:
    """Nodes that will take nothing new, each with the instant."""
    return {name: each.from_ms for name, each in cordons.items() if each.from_ms is not None and each.from_ms > now_ms}
