"""Recipes: what a run is, validated, resolved to plug-ins and laid out as a plan."""
