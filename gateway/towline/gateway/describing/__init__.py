"""What the gateway says of itself: an OpenAPI document of its calls and an AsyncAPI document of its socket.

Promises that both are made from the types that decode requests and encode answers, so that neither can say what the
code does not. `calls` is the table of calls, `shapes` the schemas, `openapi` and `asyncapi` put them together.
"""
