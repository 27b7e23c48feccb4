"""Ways to run a model other than eagerly."""
