"""The parent: one measurement under way. Nothing here imports torch."""
