"""A deployed job: the driver that follows the orders in the lake, tells how it fares, and stops where it is fenced."""
