"""What admission does with events, timers, commands and queries: load -> decide -> commit -> say."""
