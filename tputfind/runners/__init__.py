"""Many specs on many devices: the order and place of each measurement, and its result."""
