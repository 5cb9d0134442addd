"""Central images: noised means of drawn subsets of the records, the easy part of DP-FETA."""
