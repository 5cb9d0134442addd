"""A server around the diffusion engine, on Ray Serve: a thin FastAPI ingress and replicas of the engine behind it.

    door        in Ray's HTTP proxy: only well-formed requests in, only documented errors out
    ingress     the routes: who asks, what is wanted, what came of it
    service     admission, cutting into parts, asking replicas again that died
    replica     one engine, fed in batches by `batching`

`formats` is what lies between a client and the ingress.
"""
