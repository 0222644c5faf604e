"""How often Hypothesis tries."""

from hypothesis import settings

# Without a deadline: how long an example takes is no property of it, and a machine may stand still for a moment.
settings.register_profile("unit", max_examples=25, deadline=None)
settings.load_profile("unit")
