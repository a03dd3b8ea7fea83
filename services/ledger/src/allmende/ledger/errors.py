"""The reasons why the ledger does not count a fact. Codes are stable: programs and tests name them.

Never raised: a refusal is a value (`model.Fault`).
"""

from typing import Final

COUNTER_BACKWARDS: Final = "counter_backwards"
SINCE_CHANGED: Final = "since_changed"
AMOUNT_MISMATCH: Final = "amount_mismatch"
FOREIGN_ATTEMPT: Final = "foreign_attempt"
UNKNOWN_REPLICA: Final = "unknown_replica"
AHEAD_OF_CLOCK: Final = "ahead_of_clock"
CLOCK_OFF: Final = "clock_off"
BEFORE_GRANT: Final = "before_grant"
BEYOND_END: Final = "beyond_end"
EPOCHS_OVERLAP: Final = "epochs_overlap"
GRANT_CHANGED: Final = "grant_changed"
START_CHANGED: Final = "start_changed"
END_CHANGED: Final = "end_changed"
REPORT_AHEAD_OF_CLOCK: Final = "report_ahead_of_clock"
UNKNOWN_ATTEMPT: Final = "unknown_attempt"
"""Never a fault of a message: the grant is mostly only late. Whoever looks sees the counters that wait for it."""
