"""From a recipe to a plan: noise, calls, time, signal to noise, and what this machine lacks."""
