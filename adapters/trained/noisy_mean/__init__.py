"""One noisy mean of the records' features, and a generator that is fitted to it; the features are what differs."""
