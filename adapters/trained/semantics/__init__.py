"""PrivImage's semantic query: which public images are most like the private ones."""
