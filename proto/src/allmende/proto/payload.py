"""How an agent learns what a granted attempt runs: the one question whose answer is not open to everybody."""

from msgspec import Struct

from allmende.proto.ids import Id
from allmende.proto.user import Payload


class PayloadQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent asks what a granted attempt runs. Only for attempts on its own cluster that have not ended."""

    attempt: Id


class PayloadReply(Struct, frozen=True, kw_only=True):
    """What the attempt runs."""

    attempt: Id
    job: Id
    payload: Payload
