"""`allmende demo`: the whole system on one machine, under load, judged by somebody who was not asked."""
