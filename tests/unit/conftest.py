"""How often Hypothesis tries."""

from hypothesis import HealthCheck, settings

# Without a deadline, and without a word on slow examples: how long one takes is no property of it, and a machine may
# stand still for a moment.
settings.register_profile("unit", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")
