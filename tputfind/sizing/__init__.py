"""From what a record measured to how many devices a stream of requests takes. Pure: it sees no files."""
