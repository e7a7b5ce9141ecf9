"""Settings that every test shares."""

from hypothesis import HealthCheck, settings

# A loaded machine is no failing example; a failing one prints how to replay it.
settings.register_profile("streamrl", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("streamrl")
