"""Charts: their content, separate from the drawing."""
