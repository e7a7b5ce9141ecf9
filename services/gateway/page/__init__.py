"""The routes behind the run's page: its files, its live events and its history.
It imports `streamrl.services.gateway`, `streamrl.services.inspect`, `streamrl.services.run` and `streamrl`.
What a page shows is decided in `streamrl.gateway.page`.
"""
