"""A model file with a mistake."""

raise RuntimeError("the mistake in this file")
