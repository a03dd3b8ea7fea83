"""The tree of shares of a new lab, so that the first `submit` has something to charge."""

_TREE = """\
# An example: two programs with four projects. Shares are of the parent; what is left over belongs to nobody.
# `allmende budgets check FILE` checks a changed copy, `allmende budgets load FILE --reason "..."` puts it in force.

[lab]
title = "An example lab"
managers = ["PERSON"]

[lab.science]
share = "60%"

[lab.science.vision]
share = "50%"
members = ["PERSON"]

[lab.science.language]
share = "50%"
members = ["PERSON"]

[lab.engineering]
share = "40%"

[lab.engineering.evaluation]
share = "30%"
members = ["PERSON"]

[lab.engineering.tools]
share = "70%"
members = ["PERSON"]
"""


def example_tree(person: str) -> str:
    """A budget file in which one person may charge every leaf."""
    return _TREE.replace("PERSON", person)
