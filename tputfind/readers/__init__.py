"""Readers of files from users: recorded requests, server logs, prices, and results that commands saved."""
