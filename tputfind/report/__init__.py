"""Reports of results: tables, summaries, plots, files."""
