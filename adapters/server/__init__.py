"""A server around the diffusion engine, on Ray Serve: errors ← ingress (routes) ← service ← replica ← batching."""
