"""A deployed job: the driver that follows the orders in the lake, reports its state, and stops where it is fenced."""
