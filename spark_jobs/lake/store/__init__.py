"""Objects of a lake: how its folder or bucket is reached, what is created once, numbered, and says its form."""
