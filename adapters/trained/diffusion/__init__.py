"""Diffusion models that are fine-tuned on the private records by DP-SGD, and the ways in which they begin.

`dpdm` begins anew, `pdp_diffusion` and `dp_ldm` with all public images, `privimage` with those that a private query
finds to be like the private ones. All else they share: base.py.
"""
