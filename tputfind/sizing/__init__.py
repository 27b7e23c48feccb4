"""The number of devices that a stream of requests takes, from a record. Pure: it reads and writes no files."""
