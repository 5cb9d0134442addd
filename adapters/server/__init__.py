"""A server around the diffusion engine, on Ray Serve; requests go to errors, routes, service, replica, batching."""
