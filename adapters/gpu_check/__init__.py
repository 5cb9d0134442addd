"""Checks of `pe doctor --gpu` on the local generators and the server: one file per check, random weights."""
