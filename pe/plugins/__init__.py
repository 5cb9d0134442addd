"""Plug-ins: their protocols, how they are found by name, and their libraries, weights and
devices.
"""
