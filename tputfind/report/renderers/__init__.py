"""What a document looks like: on a terminal, in Markdown, as a page, as CSV, as JSON."""
