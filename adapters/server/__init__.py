"""A server around the diffusion engine, on Ray Serve: a request passes errors, routes, service, replica, batching."""
