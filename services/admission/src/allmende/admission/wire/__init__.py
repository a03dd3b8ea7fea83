"""Between the messages of proto and the values of admission, both ways: heard, said, and replies."""
