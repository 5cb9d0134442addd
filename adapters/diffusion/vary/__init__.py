"""How a pipeline varies an image: one file per way, found by `adapters.diffusion.description`."""
