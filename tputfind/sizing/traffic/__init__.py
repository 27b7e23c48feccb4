"""Requests: their rate, interarrival times and sizes, drawn or recorded."""
