"""DP-MERF: one noisy mean of random features, and a generator that is fitted to it."""
