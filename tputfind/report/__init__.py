"""Records to what people read: tables, summaries, files."""
