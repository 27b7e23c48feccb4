"""What was asked and what was measured."""
