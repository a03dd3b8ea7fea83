"""What can go wrong in the preemptor beyond a refusal. Never raised for bad input: that is quarantined before it gets here."""


class InvariantBroken(AssertionError):
    """The preemptor was about to do what it promises never to do. Nothing is committed and the process ends."""
