"""Event simulation: a clock, stations, a router, service times, and replications of a whole fleet."""
