"""What every service boots on: bus, outbox, inbox, database, clock, log, trace and health."""
