"""What a user types: the only room that knows click."""
