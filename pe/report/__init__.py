"""Pictures and pages made of a run's shareable side."""
