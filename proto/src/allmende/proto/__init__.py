"""The words every service shares: messages, subjects, streams, units, ids and the comparisons two services must agree on."""
