"""Recipes: what a run is, read, validated, and every key explained."""
