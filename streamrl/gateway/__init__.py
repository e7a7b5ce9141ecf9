"""What the gateway decides: who may, what is asked, what is said.
It imports `streamrl.conversations` and `streamrl.scheduling`.
No socket, no engine and no Ray: `services.gateway` has them.
"""
