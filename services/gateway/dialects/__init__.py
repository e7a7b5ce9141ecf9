"""The routes of each dialect: what its clients send becomes one internal request, and its answer their words.
It imports `streamrl.services.gateway` and `streamrl`.
No translation that needs no socket: `streamrl.gateway` has these.
"""
