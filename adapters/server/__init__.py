"""A server around the diffusion engine, on Ray Serve; requests go through errors, routes, service, replica, batching."""
