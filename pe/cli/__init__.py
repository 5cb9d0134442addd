"""The `pe` command: one file per group of commands. No logic."""
