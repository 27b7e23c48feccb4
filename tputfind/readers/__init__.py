"""Files that users give: recorded requests, logs of servers, prices, and results that commands saved."""
