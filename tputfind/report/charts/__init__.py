"""Charts: what they show, apart from how they are drawn."""
