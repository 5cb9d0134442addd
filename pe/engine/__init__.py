"""From a recipe to a finished run: what `pe.evolve` and the command call."""
