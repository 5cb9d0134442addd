"""Where the iterations of a run are logged to: plug-ins of the group `pe.loggers`."""
