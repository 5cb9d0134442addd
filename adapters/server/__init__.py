"""`pe serve`: a diffusion model behind HTTP, as one Ray Serve deployment."""
