"""Requests and measurements as frozen values, and the files that they are saved in."""
