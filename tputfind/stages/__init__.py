"""StageTimer, in a process of the user's or in a worker."""
