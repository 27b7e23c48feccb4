"""The search for the largest batch: pure, it sees only questions and answers."""
