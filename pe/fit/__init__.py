"""A generator that is fitted on the private records: its protocol, and its model on disk."""
