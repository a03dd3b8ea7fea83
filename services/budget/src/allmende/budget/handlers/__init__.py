"""What the budget service does when it is asked or told: each a shell around rules, one transaction a decision."""
