"""The planner: the least number of devices, the highest rate, the tightest target, the cheapest mix."""
