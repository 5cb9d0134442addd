"""`pe doctor --gpu`: checks on a GPU, each in a process of its own."""
