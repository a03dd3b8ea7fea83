"""New ids: the one reader of the system's randomness."""

import os

from allmende.proto.ids import ENTROPY_BYTES, make_id
from allmende.proto.units import Ms


class RandomIds:
    """Ids that nobody can guess, so that nobody can say a message under another's id before it is said."""

    def new(self, now_ms: Ms) -> str:
        """A new id for an instant."""
        return make_id(now_ms, os.urandom(ENTROPY_BYTES))
