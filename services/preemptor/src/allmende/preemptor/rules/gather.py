"""When an attempt leaves nodes that are gathered for somebody else: at its last save before the reservation comes due.

Pure. Never decides which nodes are gathered (admission does), and never ends a slice.
"""

from allmende.proto.units import Ms


def leaves_at_ms(protected_until_ms: Ms, saved_at_ms: Ms | None, every_ms: Ms | None, order_ms: Ms) -> Ms:
    """The instant to tell an attempt to leave: its last save between the end of its slice and `order_ms`.

    `saved_at_ms`, `every_ms`: its last save and the pace that it has shown; None: not known. Without a save in between it loses
    least when it leaves as soon as its slice is over; without a known pace it may save any moment, and stays until `order_ms`.
    """
    if saved_at_ms is None or every_ms is None:
        return max(protected_until_ms, order_ms)
    last_ms = saved_at_ms + (order_ms - saved_at_ms) // every_ms * every_ms if order_ms > saved_at_ms else saved_at_ms
    return max(protected_until_ms, last_ms)
