"""Pages and pictures of runs for people to look at."""
