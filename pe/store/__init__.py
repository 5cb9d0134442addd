"""A run on disk: its directory, journal, lock, stored releases, export and purge."""
