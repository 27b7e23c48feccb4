"""StageTimer, for the user's process and for workers."""
