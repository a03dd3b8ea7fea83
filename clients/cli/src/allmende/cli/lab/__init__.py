"""A lab on this machine: embedded servers, the four services, agents; data in one directory. Used by `up` and `demo`."""
