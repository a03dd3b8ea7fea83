"""When a notice is posted again, when it is given up, and how a post is signed, by the rules of Standard Webhooks.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md. Never a socket, and never a clock.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping

from allmende.proto.units import PPM_WHOLE, SECOND_MS, Ms, Ppm

# A receiver that restarts is back within seconds; one that is gone for a night must not be asked every minute.
FIRST_DELAY_MS: Ms = 5 * SECOND_MS
LONGEST_DELAY_MS: Ms = 3_600 * SECOND_MS
# Between 9 and 19 hours: a night. After that nobody acts on the notice any more, and `allmende notices` still has it.
TRIES_MOST = 24
GONE = 410


def is_taken(status: int) -> bool:
    """Whether an answer says that the receiver has it. A redirect does not: we follow none."""
    return 200 <= status < 300


def retry_after_ms(tries: int, status: int | None, chance_ppm: Ppm) -> Ms | None:
    """How long to wait after the `tries`-th try failed; None: give up.

    `status` None: no answer came. 410 says that nobody wants it there: given up at once. All else may be mended.
    Four times as long after each try, half of it by chance (`chance_ppm`, 0 to a million), so that many do not come together.
    """
    if status == GONE or tries >= TRIES_MOST:
        return None
    # 4^10 seconds is far beyond the longest: the power stays small.
    longest: Ms = min(FIRST_DELAY_MS * 4 ** min(tries - 1, 10), LONGEST_DELAY_MS)
    return longest * (PPM_WHOLE + chance_ppm) // (2 * PPM_WHOLE)


def signed(identifier: str, at_s: int, body: bytes, secret: bytes) -> Mapping[str, str]:
    """The headers by which a receiver knows a post: id (the same for every try), seconds since the epoch, and the signature.

    v1 = base64(HMAC-SHA256(secret, id + "." + seconds + "." + body)).
    """
    digest = hmac.digest(secret, b".".join((identifier.encode(), str(at_s).encode(), body)), hashlib.sha256)
    return {
        "webhook-id": identifier,
        "webhook-timestamp": str(at_s),
        "webhook-signature": "v1," + base64.b64encode(digest).decode(),
    }
