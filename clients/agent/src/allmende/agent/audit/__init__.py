"""Hold the services' books and decisions against a synthetic cluster's own log. Says what is wrong in numbers; mends nothing."""
