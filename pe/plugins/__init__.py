"""What plugs in: the protocols, what is found by name, its libraries, weights and devices."""
