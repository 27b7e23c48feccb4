"""Views: for each kind of result, a function that converts it to a document."""
