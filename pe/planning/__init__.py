"""From a recipe to a plan: calibration, calls, time, signal to noise, and what this machine
lacks.
"""
