"""Local diffusion models as generators: one engine, one file per family of models."""
