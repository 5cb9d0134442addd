"""Plug-ins: their protocols, how they are found, their libraries, weights and devices."""
