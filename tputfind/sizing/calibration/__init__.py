"""Overheads of a real server, estimated from its logs."""
