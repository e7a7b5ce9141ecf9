"""What the gateway decides: who may, what is asked, what is said.
It imports `streamrl.conversations` and `streamrl.scheduling`.
No socket, no engine and no Ray: `streamrl.services.gateway` has them.
"""
