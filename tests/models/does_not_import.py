"""A model file with a mistake in it."""

raise RuntimeError("the mistake in this file")
