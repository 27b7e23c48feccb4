"""What each kind of result says: a function of the result that returns a document."""
