"""Checkpoints that users bring, fitted by DP-SGD on LoRA matrices or on chosen layers: `adapter`.

`checkpoint`: what is brought, in pixel space; `latent`: Stable Diffusion; `trainable`: which of its parameters are
trained; `lora`: the matrices; `checked`: the gradient of each record beside one computed alone.
"""
